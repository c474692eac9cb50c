"""The file that says whose users are."""

from __future__ import annotations

import pytest

from gateway.access.core.tenants import SHAPES_MAX, TenantFileError, UserTenants

TEXT = """
# whose users these are
ada:acme
 urn:dev:42 : beta
meter-*:acme
*@beta.example:beta
a*a:first
meter-9:beta
"""


@pytest.mark.parametrize(
    ("user", "tenant"),
    [
        ("ada", "acme"),
        ("urn:dev:42", "beta"),
        ("meter-1", "acme"),
        ("meter-", "acme"),
        ("meter-9", "beta"),  # by its whole name, before the line with *
        ("x@beta.example", "beta"),
        ("meter-x@beta.example", "acme"),  # the first line that fits
        ("aa", "first"),
        ("a", ""),  # not the same character for both ends
        ("eve", ""),
        ("", ""),
        ("ADA", ""),
    ],
)
def test_whose_a_user_is(user: str, tenant: str) -> None:
    assert UserTenants.parse(TEXT).of(user) == tenant


def test_who_has_no_name_is_nobodys_even_if_everybody_is_somebodys() -> None:
    everybody = UserTenants.parse("*:acme")
    assert everybody.of("anybody") == "acme"
    assert everybody.of("") == ""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ada", "line 1: not of the form user:tenant"),
        ("\n:acme", "line 2: not of the form"),
        ("ada:", "line 1: tenant name ''"),
        ("ada:a/b", "line 1: tenant name 'a/b'"),
        ("ada:$acme", "tenant name"),
        ("a*b*c:acme", "line 1: 'a\\*b\\*c' has more than one"),
        ("ada:acme\nada:beta", "line 2: 'ada' is another tenant's above"),
        ("a*:acme\na*:beta", "line 2: 'a\\*' is another tenant's above"),
        ("\n".join(f"{'a' * n}*:acme" for n in range(SHAPES_MAX + 1)), "different lengths"),
    ],
)
def test_a_file_that_does_not_say_whose_somebody_is_is_of_no_use(text: str, fault: str) -> None:
    with pytest.raises(TenantFileError, match=fault):
        UserTenants.parse(text)
