"""The figures of scikit-learn, torch and torchmetrics for `eval.metrics`.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy scikit-learn==1.9.1 torchmetrics==1.9.0
    env/bin/python tests/data/metrics.py

writes metrics.json beside this file: outputs with their targets, in float32 and int64 or float32, and for each the metrics as
a job writes them with the figure of the whole. The numbers are made of few binary digits, so that JSON has them exactly.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_accuracy
from torchmetrics.functional.text import perplexity

rng = np.random.default_rng(7)
LEFT_OUT = -100


def numbers(*shape, spread=2.0, grid=1 / 256):
    return (np.round(rng.normal(0, spread, shape) / grid) * grid).astype(np.float32)


def case(name, output, target, figures):
    def figure(value):
        value = np.asarray(value, dtype=np.float64)
        return value.tolist() if value.ndim else None if np.isnan(value) else float(value)
    return dict(name=name, output=dict(shape=output.shape, data=output.ravel().tolist()),
                target=dict(shape=target.shape, whole=bool(target.dtype == np.int64), data=target.ravel().tolist()),
                figures=[dict(metric=metric, figure=figure(value)) for metric, value in figures])


def averaged(actual, predicted, average, **options):
    """F1, precision and recall."""
    scores = dict(f1=sk.f1_score, precision=sk.precision_score, recall=sk.recall_score)
    return [(dict(type=name, average=average, **options), score(actual, predicted, average=average))
            for name, score in scores.items()]


def of_classes(scores, target, ks, ignored=None):
    """Scores [n, classes, ...]."""
    options = {} if ignored is None else dict(ignore_index=ignored)
    classes = scores.shape[1]
    rows = np.moveaxis(scores, 1, -1).reshape(-1, classes)
    flat = target.ravel()
    kept = flat != (LEFT_OUT if ignored is None else ignored)
    rows, flat = rows[kept], flat[kept]
    predicted = rows.argmax(1)
    logits, classes_of = torch.from_numpy(rows), torch.from_numpy(flat)
    top = [(dict(type="top_k", k=k, **options),
            multiclass_accuracy(logits, classes_of, classes, "micro", k).item()) for k in ks]
    return top + [
        (dict(type="accuracy", **options), sk.accuracy_score(flat, predicted)),
        (dict(type="confusion_matrix", **options), sk.confusion_matrix(flat, predicted, labels=range(classes))),
        (dict(type="perplexity", **options), perplexity(logits.double()[None], classes_of[None]).item()),
        *averaged(flat, predicted, "macro", **options),
        *averaged(flat, predicted, "micro", **options),
    ]


def binary(scores, target, threshold=0.0):
    """One score for each target."""
    rows, flat = scores.ravel(), target.ravel()
    flat, rows = flat[flat != LEFT_OUT], rows[flat != LEFT_OUT]
    predicted = (rows > threshold).astype(int)
    options = {} if threshold == 0.0 else dict(threshold=threshold)
    return [
        (dict(type="auc"), sk.roc_auc_score(flat, rows)),
        (dict(type="average_precision"), sk.average_precision_score(flat, rows)),
        (dict(type="accuracy", **options), sk.accuracy_score(flat, predicted)),
        (dict(type="confusion_matrix", **options), sk.confusion_matrix(flat, predicted, labels=[0, 1])),
        *averaged(flat, predicted, "binary", **options),
        *averaged(flat, predicted, "macro", **options),
    ]


def of_two(scores, target):
    """Scores of two classes, by the probability of the second."""
    probability = torch.softmax(torch.from_numpy(scores).double(), 1)[:, 1].numpy()
    return [
        (dict(type="auc"), sk.roc_auc_score(target, probability)),
        (dict(type="average_precision"), sk.average_precision_score(target, probability)),
        *averaged(target, scores.argmax(1), "binary"),
    ]


def regression(output, target):
    columns = target.reshape(len(target), -1)
    output = output.reshape(columns.shape)
    mse = sk.mean_squared_error(columns.astype(np.float64), output.astype(np.float64))
    return [
        (dict(type="mae"), sk.mean_absolute_error(columns.astype(np.float64), output.astype(np.float64))),
        (dict(type="mse"), mse),
        (dict(type="rmse"), mse ** 0.5),
        (dict(type="r2"), sk.r2_score(columns.astype(np.float64), output.astype(np.float64))),
    ]


def cases():
    scores, target = numbers(60, 7), rng.integers(0, 7, 60)
    scores[np.arange(60), target] += 2.0
    yield case("classes", scores, target, of_classes(scores, target, [1, 3, 7]))

    seldom = np.where(target == 4, 1, target)
    mute = scores.copy()
    mute[:, 4] = -50.0
    yield case("a class that never appears", mute, seldom, of_classes(mute, seldom, [2]))
    unasked = np.where(target == 4, 1, target)
    yield case("a class that is predicted only", scores, unasked, of_classes(scores, unasked, [2]))

    sequences, words = numbers(14, 5, 6), rng.integers(0, 5, (14, 6))
    words[rng.random((14, 6)) < 0.3] = LEFT_OUT
    yield case("sequences with targets that do not count", sequences, words, of_classes(sequences, words, [2]))
    padded = np.where(words == LEFT_OUT, 0, words)
    yield case("sequences whose class 0 does not count", sequences, padded, of_classes(sequences, padded, [2], 0))

    logits, label = numbers(80, 1), rng.integers(0, 2, 80)
    logits[:, 0] += label
    yield case("binary", logits, label, binary(logits, label))
    floats = label.astype(np.float32)
    yield case("binary with float targets", logits, floats, binary(logits, floats))
    probabilities = np.round(1 / (1 + np.exp(-logits)) * 64) / 64
    yield case("probabilities", probabilities, floats, binary(probabilities, floats, 0.5))
    tied = np.round(logits)
    yield case("ties", tied, label, binary(tied, label))
    equal = np.zeros((20, 1), dtype=np.float32)
    yield case("one score for all", equal, label[:20], binary(equal, label[:20]))
    yield case("all positive", logits, np.ones(80, dtype=np.int64), binary(logits, np.ones(80, dtype=np.int64)))
    yield case("all negative", logits, np.zeros(80, dtype=np.int64), binary(logits, np.zeros(80, dtype=np.int64)))
    several, labels = numbers(25, 3), rng.integers(0, 2, (25, 3))
    labels[rng.random((25, 3)) < 0.2] = LEFT_OUT
    yield case("several labels of a sample", several, labels, binary(several, labels))
    pairs = numbers(50, 2)
    yield case("two classes", pairs, label[:50], of_two(pairs, label[:50]))

    output = numbers(45, 3)
    value = (output + numbers(45, 3, spread=0.5)).astype(np.float32)
    yield case("regression", output, value, regression(output, value))
    # A variance that is lost in the square of the mean, where one is computed by the other.
    yield case("far from 0", output[:, :1] + 4096, value[:, 0] + 4096,
               regression(output[:, :1] + 4096, value[:, 0] + 4096))
    constant = value.copy()
    right = output.copy()
    right[:, 1] = constant[:, 1] = 0.5
    yield case("a constant that is met", right, constant, regression(right, constant))
    yield case("a constant that is missed", output, constant, regression(output, constant))


def main():
    with warnings.catch_warnings():
        # Of figures that are not defined.
        warnings.simplefilter("ignore")
        text = ",\n".join(json.dumps(case) for case in cases())
    (Path(__file__).parent / "metrics.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
