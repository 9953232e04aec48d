"""The battery: is this dataset robust? Each check runs a DataLoader under one fault and judges it.

``check_dataset`` runs every check, or those you name. ``sweep`` fails one operation after another.
Both work without pytest.
"""
