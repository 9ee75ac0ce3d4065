"""Made-up flats and their rents, for jobs/regression.toml: rents_train.csv and rents_test.csv beside this file.

    python3 jobs/data/rents.py

Some years are not known, and some districts.
"""

import csv
import random
from pathlib import Path

DISTRICTS = {"centre": 4.5, "harbour": 3.0, "hills": 2.2, "north": 0.8, "station": 0.0, "west": 1.4}


def flats(count, random):
    for _ in range(count):
        area, rooms = random.uniform(22, 140), random.randint(1, 5)
        year, district = random.randint(1900, 2023), random.choice(list(DISTRICTS))
        rent = 2.0 + 0.085 * area + 0.4 * rooms + DISTRICTS[district] + 0.03 * max(0, year - 1980) + random.gauss(0, 0.5)
        yield [f"{area:.1f}", rooms, "" if random.random() < 0.15 else year,
               "" if random.random() < 0.05 else district, f"{rent:.2f}"]


def main():
    numbers = random.Random(7)
    for part, count in [("train", 1200), ("test", 300)]:
        with open(Path(__file__).parent / f"rents_{part}.csv", "w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["area", "rooms", "year", "district", "rent"])
            out.writerows(flats(count, numbers))


if __name__ == "__main__":
    main()
