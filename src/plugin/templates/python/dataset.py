"""A dataset plug-in: numbers from a CSV file, one column of which is the target.

    [data]
    root = "."                       # the folder that has the file
    plugin = "NAME.wasm"

    [data.train]                     # these keys are the arguments of __init__
    file = "example.csv"
    target = "y"
"""

import array
import csv

from pstrain import Field, Problem, export_dataset


class Csv:
    # Called once for each instance. Relative paths lead to the data folder, all else is hidden.
    def __init__(self, file: str, target: str, delimiter: str = ","):
        self.features = array.array("f")
        self.targets = array.array("f")
        with open(file, newline="") as lines:
            rows = csv.reader(lines, delimiter=delimiter)
            header = next(rows, [])
            if target not in header:
                raise Problem(f"`{file}` has no column `{target}`; it has {', '.join(header)}")
            at = header.index(target)
            for row in rows:
                try:
                    numbers = [float(cell) for cell in row]
                except ValueError as error:
                    raise Problem(f"`{file}`, line {rows.line_num}: {error}") from None
                if len(row) != len(header):
                    what = f"{len(row)} cells, and {len(header)} are wanted"
                    raise Problem(f"`{file}`, line {rows.line_num}: {what}")
                self.targets.append(numbers.pop(at))
                self.features.extend(numbers)
        self.columns = len(header) - 1

    # How many samples there are.
    def __len__(self):
        return len(self.targets)

    # What a sample consists of: by custom the model's input first and the target second.
    def fields(self):
        return [Field("features", "float32", [self.columns]), Field("target", "float32")]

    # The samples `batch.indices`: for each field all elements, one sample after the other.
    def batch(self, batch):
        n = self.columns
        features = array.array("f")
        for i in batch.indices:
            features.extend(self.features[i * n : (i + 1) * n])
        return [features, array.array("f", [self.targets[i] for i in batch.indices])]


# The name on the left is the one that the host looks for.
Dataset = export_dataset(Csv)
