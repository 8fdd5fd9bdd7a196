"""The page of a server's routes: plain HTML of what OpenAPI says, which loads nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "code,pre{background:#f2f2f2;padding:.1em .3em}pre{padding:.6em;overflow:auto}"
    "td,th{text-align:left;padding:.1em 1em .1em 0;vertical-align:top}"
)


def page(openapi: Mapping[str, Any]) -> str:
    """Write a description by OpenAPI as one page of HTML without a script.

    Args:
        openapi: as FastAPI gives it.

    Example:
        >>> "<h1>Mine</h1>" in page({"info": {"title": "Mine"}, "paths": {}})
        True
    """
    info, parts = openapi["info"], openapi.get("components", {}).get("schemas", {})
    title = escape(info["title"])
    routes = "".join(
        _route(method.upper(), path, said, parts)
        for path, methods in openapi["paths"].items()
        for method, said in methods.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(info.get('description', ''))} "
        f"For programs: <a href=openapi.json>openapi.json</a>.</p>{routes}"
    )


def _route(method: str, path: str, said: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    body = said.get("requestBody", {}).get("content", {}).get("application/json", {})
    answers = said["responses"]
    rows = [
        (f"{one['name']} (in the {one['in']})", _kind(one["schema"]) + _limits(one["schema"]))
        for one in said.get("parameters", ())
    ]
    found = [
        f"<h2><code>{method} {escape(path)}</code></h2>",
        f"<p>{escape(said.get('description', ''))}</p>",
        _table(rows),
    ]
    for head, schema in (("Body", body.get("schema")), ("Answer", _answer(answers))):
        if schema:
            named = _named(schema, parts)
            example = json.dumps(_example(schema, parts), ensure_ascii=False)
            found += [f"<h3>{head}</h3>", _table(list(_fields(named)))]
            found.append(f"<pre>{escape(example)}</pre>")
    others = [(code, one["description"]) for code, one in answers.items() if code != "200"]
    return "".join([*found, "<h3>Otherwise</h3>", _table(others)])


def _answer(answers: Mapping[str, Any]) -> Any:
    return answers.get("200", {}).get("content", {}).get("application/json", {}).get("schema")


def _table(rows: list[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{escape(name)}<td>{escape(text)}" for name, text in rows)
    return f"<table>{''.join(cells)}</table>" if rows else ""


def _named(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return parts[name] if name else schema


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, one in schema.get("properties", {}).items():
        about = f"{_kind(one)}{_limits(one)}. {one.get('description', '')}"
        yield name, about


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"array of {_kind(schema['items'])}"
    return str(schema.get("type", "anything"))


def _limits(schema: Mapping[str, Any]) -> str:
    said = {"minimum": "at least", "maximum": "at most", "default": "default"}
    return "".join(f", {word} {schema[key]}" for key, word in said.items() if key in schema)


def _example(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Any:
    """An example put together from those of its fields."""
    schema = _named(schema, parts)
    if "examples" in schema:
        return schema["examples"][0]
    if "properties" in schema:
        # A field that may be left out and has no example is left out.
        return {
            name: _example(one, parts)
            for name, one in schema["properties"].items()
            if "examples" in one or one.get("default", 0) is not None
        }
    if schema.get("type") == "array":
        return [_example(schema["items"], parts)]
    return schema.get("default", schema.get("type"))
