"""Which papers are installed, looked up once for as long as nothing is installed."""

import sys
from importlib import metadata

from coterie.core.registry import papers as registry
from coterie.core.registry.papers import papers


def test_a_paper_that_is_installed_later_is_found(toy_site, monkeypatch):
    monkeypatch.syspath_prepend(str(toy_site))
    for name in [name for name in sys.modules if name.startswith("coterie.toy")]:
        monkeypatch.delitem(sys.modules, name)
    info = (toy_site / "toy-1.dist-info").rename(toy_site.parent / "aside")
    assert "toyrec" not in papers()
    info.rename(toy_site / "toy-1.dist-info")
    assert "toyrec" in papers()


def test_packages_are_looked_through_once(monkeypatch):
    asked = []

    def counted(**group):
        asked.append(group)
        return metadata.entry_points(**group)

    monkeypatch.setattr(registry, "entry_points", counted)
    registry._installed.cache_clear()
    assert papers().keys() == papers().keys() > {"page"}
    assert asked == [{"group": registry.GROUP}]
