"""`describe`: what the pixels of a tensor mean, said after the fact and stored beside the definition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from infinite_tensor.engine.chain import TensorInStore, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import as_index, members, number, quoted, word
from infinite_tensor.tensor import InfiniteTensor, tensors_of
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.definition import channels_of, checked_dims, json_value, names_of
from infinite_tensor.values.meaning import Attribute, Fact, Georeference, Meaning, PixelCode, checked_nodata, nodata_in

_LABEL = re.compile(r"(.*?)\s*#([0-9a-fA-F]{3}|[0-9a-fA-F]{6}|[0-9a-fA-F]{8})")


def describe(
    tensor: InfiniteTensor,
    dims: object,
    crs: object,
    transform: object,
    nodata: object,
    colours: object,
    units: object,
    attributes: object,
) -> InfiniteTensor:
    """See `InfiniteTensor.describe`."""
    node = node_of(tensor)
    definition = node.spec.definition
    known = definition.meaning or Meaning()
    names = definition.dims if dims is None else checked_dims(dims, tensor.ndim)
    facts: list[Fact] = []
    if crs is not None or transform is not None:
        facts.append(_place(tensor, names_of(names, tensor.ndim), known, crs, transform))
    if nodata is not None:
        facts.append(PixelCode("nodata", checked_nodata(nodata, tensor.dtype)))
    if colours is not None:
        facts += _labels(tensor, colours)
    given = {} if attributes is None else attributes
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise ValidationError(f"attributes must be a dict of names and JSON values, got {quoted(attributes)}")
    said = {**given, **({} if units is None else {"units": units})}
    if units is not None and word(units) is None:
        raise ValidationError(f"units must be a str such as 'm', got {quoted(units)}")
    facts += [Attribute(name, json_value(f"attributes[{name!r}]", value)) for name, value in said.items()]
    new = {(fact.kind, fact.called) for fact in facts}
    labels = {label for fact in facts for label in fact.labels}
    kept = [fact for fact in known.facts if (fact.kind, fact.called) not in new]
    meaning = Meaning([*kept, *facts], [label for label in known.lost if label not in labels])
    spec = replace(node.spec, definition=replace(definition, dims=names, meaning=meaning))
    own = TensorInStore(contents_of(tensor.tile_store).describe(spec), tensor.tile_store, node.tensor.named)
    (described,) = tensors_of([own], tensor.f, node.computation.batching, tensor.args, type(tensor))
    return described


def _place(
    tensor: InfiniteTensor, names: Sequence[str], known: Meaning, crs: object, transform: object
) -> Georeference:
    """Return the place of pixels, with what is known of it and not given anew."""
    before = next(iter(known.of(Georeference)), None)
    if before is None:
        others = [d for d in range(tensor.ndim) if d not in channels_of(names)][-2:]
        if len(others) < 2:
            raise ValidationError(f"crs and transform are for rows and columns, got a tensor of shape {tensor.shape}")
        rows, columns = (names.index("y"), names.index("x")) if {"y", "x"} <= {*names} else others
        before = Georeference("", rows, columns)
    if crs is not None:
        before = replace(before, crs=_wkt(crs))
    if transform is not None:
        entries = members(transform)
        found = [number(each) for each in (entries or ())[:6]]
        numbers = [each.real for each in found if each is not None and each.imag == 0]
        if len(numbers) != 6:
            raise ValidationError(
                "transform must be an affine.Affine, or 6 numbers (a, b, c, d, e, f): pixel (row, column) begins at "
                f"x = a * column + b * row + c, y = d * column + e * row + f; got {quoted(transform)}"
            )
        before = replace(before, transform=numbers)
    return before


def _wkt(crs: object) -> str:
    try:
        from rasterio.crs import CRS  # noqa: PLC0415  (an extra)
        from rasterio.errors import CRSError  # noqa: PLC0415  (likewise)
    except ImportError as error:
        raise ImportError("describe(crs=...) needs the package rasterio: pip install rasterio") from error
    try:
        found: str = CRS.from_user_input(crs).to_wkt(version="WKT2_2019")
    except (CRSError, ValueError, TypeError) as error:
        raise ValidationError(f"crs must be one that rasterio knows, such as 'EPSG:4326', got {quoted(crs)}") from error
    return found


def _labels(tensor: InfiniteTensor, colours: object) -> list[Fact]:
    """Return the facts for the colours and the names of labels: a colour map, and flags as in netCDF."""
    entries = colours.items() if isinstance(colours, Mapping) else ()
    found: dict[int, tuple[str, list[int]]] = {}
    for key, said in entries:
        value, label = as_index(key), _LABEL.fullmatch(word(said) or "")
        if value is None or label is None or nodata_in(value, tensor.dtype) is None:
            found.clear()
            break
        digits = label[2] if len(label[2]) > 3 else "".join(2 * each for each in label[2])
        found[value] = label[1], [*bytes.fromhex(digits), 255][:4]
    if not found or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise ValidationError(
            "colours must be a dict of labels, whole numbers of the dtype of the tensor, with their names and colours, "
            f'as in {{0: "sea #24a", 1: "forest #2a7"}}, got {quoted(colours)} for {tensor.dtype}'
        )
    facts: list[Fact] = [PixelCode("colour map", [[value, *colour] for value, (_, colour) in sorted(found.items())])]
    named = {value: name for value, (name, _) in sorted(found.items()) if name}
    if named:
        facts.append(PixelCode("flag_values", [*named]))
        facts.append(PixelCode("flag_meanings", " ".join(name.replace(" ", "_") for name in named.values())))
    return facts
