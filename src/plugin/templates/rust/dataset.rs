//! A dataset plug-in: numbers from a CSV file, one column of which is the target.
//!
//! ```toml
//! [data]
//! root = "."                       # the folder that has the file
//! plugin = "NAME.wasm"
//!
//! [data.train]                     # these keys are `Config`
//! file = "example.csv"
//! target = "y"
//! ```

use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    file: String,
    /// The name of the target's column.
    target: String,
}

/// Rows lie one after the other, as `Batch::gather` wants them.
struct Table {
    features: Vec<f32>,
    targets: Vec<f32>,
    columns: u64,
}

impl Dataset for Table {
    type Config = Config;

    // Called once for each instance. Paths lead to the job's data folder; nothing else can be seen.
    fn open(Config { file, target }: Config) -> Result<Self> {
        let mut reader = csv::Reader::from_reader(data::open(&file)?);
        let header = reader.headers()?.clone();
        let at = header.iter().position(|name| name == target);
        let at =
            at.with_context(|| format!("`{file}` has no column `{target}`; it has {header:?}"))?;
        let mut table = Table {
            features: vec![],
            targets: vec![],
            columns: header.len() as u64 - 1,
        };
        for (n, row) in reader.deserialize::<Vec<f32>>().enumerate() {
            let mut row = row.with_context(|| format!("row {} of `{file}`", n + 1))?;
            table.targets.push(row.remove(at));
            table.features.extend(row);
        }
        Ok(table)
    }

    // How many samples there are.
    fn len(&self) -> u64 {
        self.targets.len() as u64
    }

    // What a sample consists of: by custom the model's input first and the target second.
    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("features", DType::Float32, [self.columns]),
            Field::new("target", DType::Float32, []),
        ]
    }

    // The samples `batch.indices()`; `gather` picks their rows.
    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        batch.gather(0, &self.features)?;
        batch.gather(1, &self.targets)
    }
}

export_dataset!(Table);

// `cargo test` runs on your own machine, without WebAssembly.
#[cfg(test)]
mod tests {
    use super::*;
    use pstrain_plugin::testing;

    #[test]
    fn the_example_has_two_features_and_a_target() -> Result<()> {
        let mut table: Table = testing::open(r#"{"file": "example.csv", "target": "y"}"#)?;
        let fields = testing::batch(&mut table, &[0, 5])?;
        assert_eq!(fields[0].shape, [2, 2]);
        assert_eq!(fields[1].values::<f32>().len(), 2);
        Ok(())
    }
}
