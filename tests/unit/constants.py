"""Constants that a test changes."""

SCALE = 1.0


def asserting(x: list[int]) -> list[int]:
    found: list[int] = []
    for each in x:
        assert each > 0 or each < -1, [each for each in found if each]
        found.append(each)
    assert found
    return found
