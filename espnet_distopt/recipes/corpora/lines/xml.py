"""Reads XML files."""

from pathlib import Path
from xml.etree import ElementTree

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_bytes


def read_xml(path: Path) -> ElementTree.Element:
    """Read a file and return its root element.

    Raises:
        InputError: The file is missing, empty or not well-formed; the message names the
            line.
    """
    try:
        return ElementTree.fromstring(read_bytes(path))
    except ElementTree.ParseError as error:
        what = str(error).partition(":")[0]
        raise InputError(f"{path}:{error.position[0]}: bad XML: {what}") from None
    except (LookupError, ValueError) as error:  # the file declares a bad encoding
        raise InputError(f"{path}:1: bad XML: {error}") from None


def local_name(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace.

    >>> local_name(ElementTree.fromstring('<a xmlns="http://b"/>'))
    'a'
    """
    return element.tag.rpartition("}")[2]


def children(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return the children that have a name, in any namespace."""
    return [child for child in element if local_name(child) == name]
