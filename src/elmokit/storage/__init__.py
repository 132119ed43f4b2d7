"""Models on disk: names, downloads, file layouts, and the formats that are read and written.

`names.resolve(name).read()` returns what the files of a model hold, whatever their format. The modules that read
weights import torch; `names`, `downloads` and `layouts` do not.
"""
