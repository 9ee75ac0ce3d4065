//! Arrays of NumPy: each is a field, with the samples in its first dimension.

mod array;
mod header;

use array::Array;
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// One or several: .npz files, and .npy files of one array each.
    file: OneOrMore,
    /// The arrays that are wanted, in order; all that there are if not given.
    fields: Option<Vec<String>>,
    #[serde(default = "in_memory_mb")]
    in_memory_mb: u64,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted a file's name, or a list of them")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

fn in_memory_mb() -> u64 {
    64
}

struct Npy {
    arrays: Vec<Array>,
}

impl Dataset for Npy {
    type Config = Config;

    fn open(Config { file, fields, in_memory_mb }: Config) -> Result<Self> {
        let files = match file {
            OneOrMore::One(file) => vec![file],
            OneOrMore::More(files) => files,
        };
        let mut room = in_memory_mb.saturating_mul(1 << 20);
        let mut arrays = Vec::new();
        for file in &files {
            arrays.extend(array::open(file, &mut room)?);
        }
        if let Some(fields) = fields {
            let mut picked = Vec::new();
            for field in fields {
                let names =
                    || arrays.iter().map(|array| array.name.as_str()).collect::<Vec<_>>().join("`, `");
                let at = arrays.iter().position(|array| array.name == field);
                let at =
                    at.with_context(|| format!("there is no array `{field}`; there are `{}`", names()))?;
                picked.push(arrays.swap_remove(at));
            }
            arrays = picked;
        }
        let first = arrays.first().with_context(|| format!("`{}` has no arrays", files.join("`, `")))?;
        for other in &arrays[1..] {
            ensure!(
                other.samples() == first.samples(),
                "{} has {} samples, and {} has {}\nhint: `fields` picks arrays",
                first.place(),
                first.samples(),
                other.place(),
                other.samples()
            );
        }
        Ok(Npy { arrays })
    }

    fn len(&self) -> u64 {
        self.arrays[0].samples()
    }

    fn fields(&self) -> Vec<Field> {
        let told = |array: &Array| Field::new(array.name.as_str(), array.dtype(), array.shape());
        self.arrays.iter().map(told).collect()
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        for (field, array) in self.arrays.iter_mut().enumerate() {
            batch.fill_bytes(field, |index, to| array.read(index, to))?;
        }
        Ok(())
    }
}

export_dataset!(Npy);

#[cfg(test)]
mod tests;
