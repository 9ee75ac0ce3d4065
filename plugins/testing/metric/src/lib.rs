//! The mean absolute error as a plug-in's own, until its configuration names a mistake.

use pstrain_plugin::prelude::*;

#[derive(Default)]
struct Mae {
    /// What to do wrong.
    sin: String,
    /// Whether the largest error is told, too.
    several: bool,
    sum: f64,
    largest: f64,
    count: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    sin: String,
    #[serde(default)]
    several: bool,
}

impl Metric for Mae {
    type Config = Config;

    fn open(Config { sin, several }: Config) -> Result<Self> {
        Ok(Mae { sin, several, ..Mae::default() })
    }

    fn update(&mut self, outputs: &[Buffer], targets: &[Buffer]) -> Result<()> {
        if self.sin == "update-loops" {
            while std::hint::black_box(true) {}
        }
        let ([output], [target]) = (outputs, targets) else { bail!("one output and one target are wanted") };
        let (output, target) = (output.to_f64()?, target.to_f64()?);
        ensure!(output.len() == target.len(), "{} outputs for {} targets", output.len(), target.len());
        for error in output.iter().zip(&target).map(|(output, target)| (output - target).abs()) {
            self.sum += error;
            self.largest = self.largest.max(error);
        }
        self.count += output.len() as f64;
        Ok(())
    }

    fn state(&self) -> Result<Vec<u8>> {
        match self.sin.as_str() {
            "large-state" => Ok(vec![0; (64 << 20) + 1]),
            "no-memory" => Ok(vec![1; 1 << 30]),
            _ => Ok(pack(&[self.sum, self.largest, self.count])),
        }
    }

    fn merge(&mut self, state: &[u8]) -> Result<()> {
        match self.sin.as_str() {
            "merge-panics" => panic!("this was never meant to be merged"),
            "merge-loops" => while std::hint::black_box(true) {},
            "merge-forgets" => return Ok(()),
            _ => {}
        }
        let [sum, largest, count] = unpack::<f64, 3>(state)?;
        ensure!(sum >= 0.0 && count >= 0.0, "a sum of {sum} over {count} came");
        self.sum += sum;
        self.largest = self.largest.max(largest);
        self.count += count;
        Ok(())
    }

    fn value(&self) -> Result<Figure> {
        let mean = self.sum / self.count;
        let long = || "n".repeat(1 << 20);
        Ok(match self.sin.as_str() {
            "nan" => f64::NAN.into(),
            "long-name" => Figure::several([(long(), mean)]),
            "many-names" => Figure::several((0..100_000).map(|n| (n.to_string(), mean))),
            "much-of-names" => Figure::several((0..100).map(|_| (long(), mean))),
            "same-names" => Figure::several([("mean", mean), ("mean", mean)]),
            "no-names" => Figure::Several(Vec::new()),
            "strange-name" => Figure::several([("a\u{1b}[31m", mean)]),
            _ if self.several => Figure::several([("mean", mean), ("largest", self.largest)]),
            _ => mean.into(),
        })
    }
}

export_metric!(Mae);
