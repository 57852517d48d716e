"""Check digits of Chinese identity numbers, organisations' codes and bank cards."""

from __future__ import annotations

from datetime import date

# GB 11643-1999: ISO 7064 MOD 11-2.
_ID_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_ID_CHECKS = "10X98765432"
# GB 32100-2015: base 31 without I, O, S, V, Z; weights are 3**n mod 31.
_CODE_DIGITS = "0123456789ABCDEFGHJKLMNPQRTUWXY"
_CODE_WEIGHTS = (1, 3, 9, 27, 19, 26, 16, 17, 20, 29, 25, 13, 8, 24, 10, 30, 28)
# First two digits of an identity number (GB/T 2260): provinces, Hong Kong, Macau, Taiwan's permits.
_PROVINCES = frozenset(
    (*range(11, 16), *range(21, 24), *range(31, 38), *range(41, 47), *range(50, 55), *range(61, 66), 71, 81, 82, 83, 91)
)


def is_id_shaped(number: str) -> bool:
    """Whether 17 digits and a digit or X could be an identity number: a province, and a birthday that there was."""
    if len(number) != 18 or not number[:17].isdigit() or int(number[:2]) not in _PROVINCES:
        return False
    year = int(number[6:10])
    try:
        date(year, int(number[10:12]), int(number[12:14]))
    except ValueError:
        return False
    return 1850 <= year <= 2100


def is_id_card(number: str) -> bool:
    """An identity number with the right check digit (``x`` counts as ``X``)."""
    if not is_id_shaped(number):
        return False
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, number, strict=False))
    return _ID_CHECKS[total % 11] == number[17].upper()


def is_luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def is_card_shaped(digits: str) -> bool:
    """Whether so many digits that begin so are given to bank cards (15 of American Express, 16 to 19 of others)."""
    if len(set(digits)) == 1:
        return False
    if len(digits) == 15:
        return digits[:2] in ("34", "37")
    return 16 <= len(digits) <= 19 and digits[0] in "34569"


def is_credit_code(code: str) -> bool:
    """A unified social credit code with the right check digit."""
    if len(code) != 18 or any(character not in _CODE_DIGITS for character in code):
        return False
    total = sum(weight * _CODE_DIGITS.index(character) for weight, character in zip(_CODE_WEIGHTS, code, strict=False))
    return _CODE_DIGITS[(31 - total % 31) % 31] == code[17]
