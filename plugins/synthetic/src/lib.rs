//! Made-up samples, for trials without data. Sample i is the same however and wherever it is asked for.
//!
//! | `kind` | fields |
//! |---|---|
//! | `regression` | `features` float32 [shape], normal; `target` float32 [targets], linear in them, with noise |
//! | `classification` | `features` float32 [shape], normal around the centre of the class; `target` int64 |
//! | `images` | `images` uint8 [shape], a pattern of the class with noise; `labels` int64 |

use pstrain_plugin::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

/// Weights and centres are drawn from this stream of the generator, samples from those of their index.
const MODEL_STREAM: u64 = u64::MAX;
/// Elements that may be held: the weights or the centres.
const MOST_ELEMENTS: u64 = 1 << 24;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    kind: Kind,
    samples: u64,
    /// The shape of one sample's features or image.
    shape: Vec<u64>,
    #[serde(default = "two")]
    classes: u64,
    /// How many numbers a regression's target has.
    #[serde(default = "one")]
    targets: u64,
    /// Deviation of what is added to targets (regression) or features (classification: 1 is the distance scale of
    /// the centres; images: 1 is a fifth of the range).
    #[serde(default = "tenth")]
    noise: f32,
    /// Another seed is another task, with other weights or centres.
    #[serde(default)]
    seed: u64,
    /// Index of the first sample: a test set is the same seed behind the training set's samples.
    #[serde(default)]
    offset: u64,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Regression,
    Classification,
    Images,
}

fn one() -> u64 {
    1
}

fn two() -> u64 {
    2
}

fn tenth() -> f32 {
    0.1
}

struct Synthetic {
    config: Config,
    /// Elements of one sample.
    size: usize,
    /// Regression: weights [targets, size]; otherwise centres [classes, size].
    model: Vec<f32>,
}

impl Dataset for Synthetic {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        ensure!(config.samples > 0, "`samples` = 0: there should be at least one");
        ensure!(!config.shape.is_empty(), "`shape` is empty: give the sizes of one sample, such as [16]");
        ensure!(
            config.noise.is_finite() && config.noise >= 0.0,
            "`noise` = {} is not a number from 0 on",
            config.noise
        );
        config.samples.checked_add(config.offset).context("`offset` and `samples` are too large together")?;
        let (key, rows) = match config.kind {
            Kind::Regression => ("targets", config.targets),
            Kind::Classification | Kind::Images => ("classes", config.classes),
        };
        ensure!(rows > 0, "`{key}` = 0: there should be at least one");
        let size = config.shape.iter().try_fold(1, |product: u64, &size| product.checked_mul(size));
        let elements =
            size.and_then(|size| size.checked_mul(rows)).filter(|elements| *elements <= MOST_ELEMENTS);
        let elements = elements.with_context(|| {
            format!(
                "`shape` = {:?} times `{key}` = {rows} is more than {MOST_ELEMENTS} elements",
                config.shape
            )
        })?;
        ensure!(elements > 0, "`shape` = {:?} has no elements", config.shape);
        let mut random = stream(config.seed, MODEL_STREAM);
        let model = (0..elements).map(|_| random.sample(StandardNormal)).collect();
        Ok(Synthetic { size: (elements / rows) as usize, model, config })
    }

    fn len(&self) -> u64 {
        self.config.samples
    }

    fn fields(&self) -> Vec<Field> {
        let Config { kind, shape, targets, .. } = &self.config;
        let scalar_or = |targets: u64| if targets == 1 { Vec::new() } else { vec![targets] };
        match kind {
            Kind::Regression => vec![
                Field::new("features", DType::Float32, shape.clone()),
                Field::new("target", DType::Float32, scalar_or(*targets)),
            ],
            Kind::Classification => {
                vec![
                    Field::new("features", DType::Float32, shape.clone()),
                    Field::new("target", DType::Int64, []),
                ]
            }
            Kind::Images => {
                vec![
                    Field::new("images", DType::Uint8, shape.clone()),
                    Field::new("labels", DType::Int64, []),
                ]
            }
        }
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        match self.config.kind {
            Kind::Regression => self.regression(batch),
            Kind::Classification | Kind::Images => self.classes(batch),
        }
    }
}

impl Synthetic {
    fn regression(&self, batch: &mut Batch) -> Result<()> {
        let mut targets = Vec::with_capacity(batch.indices().len() * self.config.targets as usize);
        // Each weighs as much as the noise would with deviation 1, whatever the number of features.
        let scale = (self.size as f32).sqrt().recip();
        batch.fill(0, |index, features: &mut [f32]| {
            let mut random = self.sample(index);
            features.fill_with(|| random.sample(StandardNormal));
            targets.extend(self.model.chunks_exact(self.size).map(|weights| {
                let linear: f32 =
                    weights.iter().zip(&*features).map(|(weight, feature)| weight * feature).sum();
                linear * scale + self.config.noise * random.sample::<f32, _>(StandardNormal)
            }));
            Ok(())
        })?;
        batch.emit(1, &targets)
    }

    fn classes(&self, batch: &mut Batch) -> Result<()> {
        let mut classes = Vec::with_capacity(batch.indices().len());
        let mut draw = |index| {
            let mut random = self.sample(index);
            let class = random.random_range(0..self.config.classes);
            classes.push(class as i64);
            (random, &self.model[class as usize * self.size..][..self.size])
        };
        let noise = self.config.noise;
        if self.config.kind == Kind::Images {
            batch.fill(0, |index, pixels: &mut [u8]| {
                let (mut random, centre) = draw(index);
                for (pixel, &mean) in pixels.iter_mut().zip(centre) {
                    let value = mean + noise * random.sample::<f32, _>(StandardNormal);
                    // A fifth of the range for each deviation; the cast cuts off what is outside.
                    *pixel = (127.5 + 51.0 * value) as u8;
                }
                Ok(())
            })?;
        } else {
            batch.fill(0, |index, features: &mut [f32]| {
                let (mut random, centre) = draw(index);
                for (feature, &mean) in features.iter_mut().zip(centre) {
                    *feature = mean + noise * random.sample::<f32, _>(StandardNormal);
                }
                Ok(())
            })?;
        }
        batch.emit(1, &classes)
    }

    fn sample(&self, index: u64) -> ChaCha8Rng {
        stream(self.config.seed, index + self.config.offset)
    }
}

fn stream(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

export_dataset!(Synthetic);

#[cfg(test)]
mod tests {
    use super::*;
    use pstrain_plugin::testing::{self, Emitted};

    fn open(json: &str) -> Result<Synthetic> {
        testing::open(json)
    }

    fn batch(json: &str, indices: &[u64]) -> Vec<Emitted> {
        testing::batch(&mut open(json).unwrap(), indices).unwrap()
    }

    #[test]
    fn a_sample_is_the_same_in_any_batch() {
        for kind in ["regression", "classification", "images"] {
            let json = format!(r#"{{"kind": "{kind}", "samples": 100, "shape": [2, 3]}}"#);
            let (one, many) = (batch(&json, &[41]), batch(&json, &[7, 41, 41]));
            for (one, many) in one.iter().zip(&many) {
                let size = one.bytes.len();
                assert_eq!(one.bytes, many.bytes[size..2 * size]);
                assert_eq!(one.bytes, many.bytes[2 * size..]);
                assert_eq!(many.shape[0], 3);
            }
            assert_ne!(many[0].bytes[..6], many[0].bytes[6..12]);
        }
    }

    #[test]
    fn a_test_set_lies_behind_the_training_set_of_the_same_task() {
        let of = |more: &str| format!(r#"{{"kind": "regression", "samples": 100, "shape": [4]{more}}}"#);
        assert_eq!(batch(&of(""), &[60]), batch(&of(r#", "offset": 50"#), &[10]));
        assert_ne!(batch(&of(""), &[60]), batch(&of(r#", "seed": 1"#), &[60]));
    }

    #[test]
    fn targets_are_linear_in_the_features_but_for_the_noise() {
        let json = r#"{"kind": "regression", "samples": 9, "shape": [2], "targets": 3, "noise": 0}"#;
        let fields = batch(json, &[0, 1, 2]);
        assert_eq!(fields[1].shape, [3, 3]);
        let (x, y) = (fields[0].values::<f32>(), fields[1].values::<f32>());
        // Row 2 as a mix of rows 0 and 1 gives target 2 as the same mix of targets 0 and 1.
        let det = x[0] * x[3] - x[1] * x[2];
        let (a, b) = ((x[4] * x[3] - x[5] * x[2]) / det, (x[0] * x[5] - x[1] * x[4]) / det);
        for target in 0..3 {
            assert!((a * y[target] + b * y[3 + target] - y[6 + target]).abs() < 1e-4);
        }
    }

    #[test]
    fn classes_come_about_equally_often() {
        let json = r#"{"kind": "classification", "samples": 3000, "shape": [1], "classes": 3}"#;
        let classes = batch(json, &(0..3000).collect::<Vec<_>>())[1].values::<i64>();
        for class in 0..3 {
            let count = classes.iter().filter(|&&c| c == class).count();
            assert!((900..1100).contains(&count), "{class}: {count}");
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let error = |more: &str| open(&format!(r#"{{"kind": "images", {more}}}"#)).err().unwrap().to_string();
        assert_eq!(error(r#""samples": 0, "shape": [2]"#), "`samples` = 0: there should be at least one");
        assert_eq!(
            error(r#""samples": 1, "shape": [99999, 99999]"#),
            "`shape` = [99999, 99999] times `classes` = 2 is more than 16777216 elements"
        );
        assert_eq!(
            error(r#""samples": 1, "shape": [2], "noise": -1"#),
            "`noise` = -1 is not a number from 0 on"
        );
        assert_eq!(
            error(r#""samples": 1, "shape": [2], "clases": 3"#),
            "unknown key `clases`, expected one of `kind`, `samples`, `shape`, `classes`, `targets`, `noise`, `seed`, `offset`"
        );
    }
}
