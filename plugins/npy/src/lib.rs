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
            arrays = picked(arrays, &fields)?;
        }
        let first = arrays.first().with_context(|| {
            let hint = "numpy.savez(\"data.npz\", x=x, y=y) writes some, and `fields` picks some";
            format!("`{}` has no arrays\nhint: {hint}", files.join("`, `"))
        })?;
        for other in &arrays[1..] {
            ensure!(
                other.samples() == first.samples(),
                "{} has {} samples, and {} has {}\nhint: save as many of each; `fields` leaves arrays out",
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

/// Those that `fields` names, in its order.
fn picked(mut arrays: Vec<Array>, fields: &[String]) -> Result<Vec<Array>> {
    let there: Vec<String> = arrays.iter().map(|array| array.name.clone()).collect();
    let mut picked = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        ensure!(!fields[..at].contains(field), "`fields` names `{field}` twice\nhint: leave one of them out");
        let found = arrays.iter().position(|array| array.name == *field);
        let found = found.with_context(|| {
            format!(
                "there is no array `{field}`; there are `{}`\nhint: `fields` names some of them",
                there.join("`, `")
            )
        })?;
        picked.push(arrays.swap_remove(found));
    }
    Ok(picked)
}

export_dataset!(Npy);

#[cfg(test)]
mod tests;
