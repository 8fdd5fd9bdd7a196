"""Words of items: TF-IDF by a loop, histories, texts, and the rule that is not trained."""

import itertools
import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm import rules as rule
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.data.catalogue import Catalogue, ItemWords
from coterie.llm.experiment import Experiment
from coterie.llm.settings import FederatedDataSettings, Settings

pytestmark = pytest.mark.long

TITLES = ["Red boat 2", "red Sea", "The red sea boat", "Ox", "ox, the ox"]


def terms(text):
    words = re.findall(r"\w+", text.lower())
    return Counter([*words, *map(" ".join, itertools.pairwise(words))])


def vector(text, titles, least=1):
    documents = [terms(title) for title in titles]
    held = {term: sum(term in d for d in documents) for term in terms(text)}
    known = {
        term: count * (1 + math.log((1 + len(titles)) / (1 + held[term])))
        for term, count in terms(text).items()
        if held[term] >= least
    }
    length = math.sqrt(sum(value**2 for value in known.values())) or 1.0
    return {term: value / length for term, value in known.items()}


def cosine(one, other):
    product = sum(value * other.get(term, 0.0) for term, value in one.items())
    return product / math.sqrt(sum(v**2 for v in one.values()) or 1.0)


def history_vector(items, titles, decay, least=1):
    total = Counter()
    for age, item in enumerate(reversed(items)):
        for term, value in vector(titles[item], titles, least).items():
            total[term] += decay**age * value
    return total


def test_histories_and_texts_are_those_of_a_loop():
    words, histories = ItemWords(TITLES), [[0, 3, 1], [], [4, 2]]
    found = words.of_histories(Ragged.from_lists(histories), 0.8)
    for row, items in zip(found, histories, strict=True):
        own = history_vector(items, TITLES, 0.8)
        expected = [cosine(own, vector(title, TITLES)) for title in TITLES]
        assert row.tolist() == pytest.approx(expected, abs=1e-12)
    texts = ["sea ox", "nothing of it", "Red boat 2"]
    for row, text in zip(words.of_texts(texts), texts, strict=True):
        own = vector(text, TITLES)
        assert row.tolist() == pytest.approx([cosine(own, vector(t, TITLES)) for t in TITLES])
    assert words.of_texts(["Red boat 2"])[0, 0] == pytest.approx(1.0)  # single letters count


def test_a_history_alone_scores_as_among_others():
    words, rows = ItemWords(TITLES), [[0, 3, 1], [2], [4, 2]]
    together = words.of_histories(Ragged.from_lists(rows), 0.5)
    alone = [words.of_histories(Ragged.from_lists([row]), 0.5)[0] for row in rows]
    assert torch.equal(together, torch.stack(alone))


def test_items_are_compared_by_the_fields_that_are_named():
    items = Catalogue(1, "mine", titles=["Up"], genres=[["Sci-Fi", "Drama"]])
    assert items.words() == ["Up"]
    assert items.words(("titles", "genres")) == ["Up Sci-Fi Drama"]
    assert replace(items, titles=None).words() == ["Sci-Fi Drama"]
    with pytest.raises(UserError, match="mine has no brands"):
        items.words(("brands",))
    with pytest.raises(UserError, match="titles cannot be compared"):
        ItemWords(["", "-"])


@pytest.fixture(scope="module")
def data():
    return Experiment(Settings(data=FederatedDataSettings(span=50, stride=10))).data


@pytest.mark.parametrize("whose", ["public", "everybody", "own", "both"])
def test_the_rule_is_chosen_on_validation_and_scored_by_a_loop(data, whose):
    found = rule.title_rule(data, whose)
    titles = data.catalogue.words(found.words)
    vectors = [vector(title, titles, found.min_items) for title in titles]
    assert (found.weight > 0) == (whose != "own")
    assert (found.own > 0) == (whose in ("own", "both"))
    everybody = whose in ("everybody", "both")
    for split in ("valid", "test"):
        counts, mine = Counter(), Counter()
        rows = (part.tolists() for part in (data.split.train, data.split.valid))
        for client, train, later in zip(data.client_of.tolist(), *rows, strict=True):
            if client == -1 or everybody:
                counts.update(train)
            if client != -2 and everybody and split == "test":
                counts.update(later)
            if client == 4:
                mine.update([*train, *later] if split == "test" else train)
        queries = getattr(data.clients, split)[4]
        recalls = []
        rows = (part.tolists() for part in (queries.history, queries.seen, queries.targets))
        for history, seen, targets in zip(*rows, strict=True):
            own = history_vector(history, titles, rule.DECAY, found.min_items)
            scores = {
                item: cosine(own, vectors[item])
                + found.weight * math.log1p(counts[item])
                + found.own * math.log1p(mine[item])
                for item in range(data.n_items)
                if item not in seen
            }
            best = sorted(scores, key=lambda item: -scores[item])[:10]
            recalls.append(len(set(best) & set(targets)) / len(targets))
        assert getattr(found, split)[4]["recall@10"].tolist() == pytest.approx(recalls)


def test_validation_chooses_the_words_and_the_weight(data, monkeypatch):
    def recall(found, split):
        return float(torch.cat([part["recall@10"] for part in getattr(found, split)]).mean())

    chosen, singles = rule.title_rule(data), {}
    fields = (("titles",), ("genres",), ("titles", "genres"))
    for words, least, weight in itertools.product(fields, rule.MIN_ITEMS, rule.WEIGHTS):
        monkeypatch.setattr(rule, "_FIELDS", (words,))
        monkeypatch.setattr(rule, "MIN_ITEMS", (least,))
        monkeypatch.setattr(rule, "WEIGHTS", (weight,))
        singles[words, least, weight] = rule.title_rule(data)
        monkeypatch.undo()
    by_valid = max(singles, key=lambda one: recall(singles[one], "valid"))
    by_test = max(singles, key=lambda one: recall(singles[one], "test"))
    assert (chosen.words, chosen.min_items, chosen.weight) == by_valid != by_test
    assert recall(chosen, "valid") == recall(singles[by_valid], "valid") > 0.2


def test_the_rule_needs_words(data):
    bare = replace(data, interactions=replace(data.interactions, titles=None, genres=None))
    with pytest.raises(UserError, match="neither titles nor genres"):
        rule.title_rule(bare)


def test_dense_vectors_are_those_of_a_full_svd():
    words = ItemWords(TITLES)
    found = words.dense(3, Key.from_seed(0)).double().numpy()
    left, singular, _ = np.linalg.svd(words.vectors.toarray())
    expected = (left[:, :5] * singular)[:, :3]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
    wide = words.dense(9, Key.from_seed(0))  # wider than there are titles
    assert wide.shape == (5, 9)
    np.testing.assert_allclose(
        (wide @ wide.T).numpy(), (words.vectors @ words.vectors.T).toarray(), atol=1e-5
    )


def test_item_embeddings_start_from_words_at_the_usual_length():
    model = TinyItem(5, width=8, layers=1, heads=2, context=4, key=Key.from_seed(0))
    table = model.model.get_input_embeddings().weight
    before = table.detach().clone()
    vectors = ItemWords(TITLES).dense(8, Key.from_seed(0))
    model.start_items(vectors)
    after = table.detach()
    assert torch.equal(after[5:], before[5:])  # start and padding
    assert float(after[:5].norm()) == pytest.approx(float(before[:5].norm()), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(after[:5], vectors)
    assert cosine.tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    assert model.model.lm_head.weight is table


def test_words_that_few_items_have_are_left_out():
    history, titles = [0, 3, 1], TITLES
    found = ItemWords(titles, 2).of_histories(Ragged.from_lists([history]), 0.5)[0]
    own = history_vector(history, titles, 0.5, least=2)
    expected = [cosine(own, vector(title, titles, least=2)) for title in titles]
    assert found.tolist() == pytest.approx(expected)
    with pytest.raises(UserError, match="cannot be compared by their words"):
        ItemWords(titles, 5)
