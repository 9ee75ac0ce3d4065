//! Images in folders, one for each class, as torchvision's `ImageFolder` reads them. Fields: `images`, uint8 [channels,
//! height, width], and `labels`, int64.

mod decode;
mod transform;
mod tree;

use fast_image_resize::Resizer;
use pstrain_plugin::prelude::*;
use std::collections::HashMap;
use std::io::Read;
use transform::{Planes, Size, Transform};
use tree::Tree;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// It has a folder for each class.
    folder: String,
    #[serde(default = "colours")]
    channels: usize,
    resize: Option<Size>,
    crop: Option<Size>,
    #[serde(default)]
    random_crop: bool,
    #[serde(default)]
    flip: bool,
    #[serde(default)]
    shift: usize,
    #[serde(default = "cache_mb")]
    cache_mb: usize,
}

fn colours() -> usize {
    3
}

fn cache_mb() -> usize {
    128
}

/// No image's file has more bytes.
const LARGEST_FILE: u64 = 256 << 20;

struct Images {
    tree: Tree,
    classes: Vec<String>,
    size: [usize; 2],
    source: Source,
}

/// Reads images one by one.
struct Source {
    channels: usize,
    transform: Transform,
    resizer: Resizer,
    /// A file's bytes.
    file: Vec<u8>,
    /// Decoded and resized. The first that come stay: every pass asks for all of them, so that an older one is as good as a
    /// newer.
    cache: HashMap<u64, Planes>,
    room: usize,
}

impl Images {
    fn read(config: Config, known: Option<Vec<String>>) -> Result<Self> {
        let Config { folder, channels, resize, crop, random_crop, flip, shift, cache_mb } = config;
        ensure!(matches!(channels, 1 | 3), "`channels` = {channels} is neither 1 nor 3");
        let transform = Transform { resize, crop, random_crop, flip, shift };
        transform.check()?;
        let (tree, classes) = Tree::read(folder.trim_end_matches('/'), known)?;
        let mut source = Source {
            channels,
            transform,
            resizer: Resizer::new(),
            file: Vec::new(),
            cache: HashMap::new(),
            room: cache_mb.saturating_mul(1 << 20),
        };
        let size = match source.transform.size() {
            Some(size) => size,
            None => {
                let first = source.load(&tree.path(0)?)?;
                [first.height, first.width]
            }
        };
        Ok(Images { tree, classes, size, source })
    }
}

impl Source {
    /// Decoded and resized.
    fn load(&mut self, path: &str) -> Result<Planes> {
        let mut file = data::open(path)?;
        let size = file.metadata().map_or(0, |meta| meta.len());
        ensure!(size <= LARGEST_FILE, "`{path}` has {size} bytes; {LARGEST_FILE} are possible");
        self.file.clear();
        self.file.reserve(size as usize + 1);
        let read = file.by_ref().take(LARGEST_FILE).read_to_end(&mut self.file);
        read.with_context(|| format!("cannot read `{path}`"))?;
        let pixels = decode::decode(&self.file, self.channels);
        pixels
            .and_then(|pixels| self.transform.prepare(pixels, &mut self.resizer))
            .map_err(|error| anyhow!("`{path}`: {error}"))
    }

    fn write(
        &mut self,
        tree: &Tree,
        index: u64,
        size: [usize; 2],
        chance: Option<Random>,
        to: &mut [u8],
    ) -> Result<()> {
        let named = |error: Error| match tree.path(index) {
            Ok(path) => anyhow!("`{path}`: {error}"),
            Err(other) => other,
        };
        if let Some(planes) = self.cache.get(&index) {
            return self.transform.apply(planes, size, chance, to).map_err(named);
        }
        let planes = self.load(&tree.path(index)?)?;
        self.transform.apply(&planes, size, chance, to).map_err(named)?;
        if let Some(room) = self.room.checked_sub(planes.bytes.len() + size_of::<(u64, Planes)>()) {
            self.room = room;
            self.cache.insert(index, planes);
        }
        Ok(())
    }
}

impl Dataset for Images {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        Images::read(config, None)
    }

    fn open_with(config: Config, state: &[u8]) -> Result<Self> {
        let classes: Vec<String> =
            serde_json::from_slice(state).context("the classes of the training images")?;
        ensure!(classes.is_sorted(), "the classes of the training images are in no order");
        Images::read(config, Some(classes))
    }

    /// The classes, in the order of their numbers.
    fn state(&self) -> Result<Option<Vec<u8>>> {
        Ok(Some(serde_json::to_vec(&self.classes)?))
    }

    fn len(&self) -> u64 {
        self.tree.len()
    }

    fn fields(&self) -> Vec<Field> {
        let [height, width] = self.size.map(|size| size as u64);
        vec![
            Field::new("images", DType::Uint8, [self.source.channels as u64, height, width]),
            Field::new("labels", DType::Int64, []),
        ]
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let Images { tree, size, source, .. } = self;
        let purpose = batch.purpose();
        batch.fill(0, |index, to: &mut [u8]| {
            let chance = purpose.train.then(|| purpose.random(index));
            source.write(tree, index, *size, chance, to)
        })?;
        batch.fill(1, |index, to: &mut [i64]| {
            to[0] = tree.class(index)?;
            Ok(())
        })
    }
}

export_dataset!(Images);

#[cfg(test)]
mod tests;
