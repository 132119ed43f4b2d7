"""Vectors of many sentences become one file, in bounded memory; a run that was stopped resumes.

file.py     `VectorFile`: what is asked for
write.py    lines of text -> vectors -> the file
parts.py    the folder OUT.partial with what is done so far
formats.py  parts -> HDF5, NPZ, Parquet, safetensors
"""

from elmokit.vector_files.file import SUFFIXES, Format, VectorFile, Written, format_of
from elmokit.vector_files.formats import nest_vectors
from elmokit.vector_files.write import decode_lines, read_lines, write_vectors

__all__ = [
    "SUFFIXES",
    "Format",
    "VectorFile",
    "Written",
    "decode_lines",
    "format_of",
    "nest_vectors",
    "read_lines",
    "write_vectors",
]
