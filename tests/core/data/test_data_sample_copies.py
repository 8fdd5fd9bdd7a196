"""The built-in sample is drawn once in a process, and everybody has a copy."""

from coterie.core.data.sources.sample import generate


def test_what_one_caller_changes_is_not_changed_for_the_next():
    first = generate()
    user, title = first.user.clone(), first.titles[0]
    first.user.zero_()
    first.titles[0] = ""
    second = generate()
    assert second.user.equal(user)
    assert second.titles[0] == title
    assert not generate(1).user.equal(user)
