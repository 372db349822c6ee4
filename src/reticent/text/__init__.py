"""Texts before a model sees them: corpora and their formats, near-duplicates, templates and tokenisation.

Records of one owner, and those of nearly the same text, are one privacy unit:

>>> from reticent.text.corpus import TextRecord, group_units
>>> texts = ["The knee is better since Monday.", "The knee is better since Monday!", "No fever."]
>>> units = group_units([TextRecord(text, unit=f"patient {n}", source="notes") for n, text in enumerate(texts)])
>>> units.unit_of_record.tolist()
[0, 0, 1]
"""
