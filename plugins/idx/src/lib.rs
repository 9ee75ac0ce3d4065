//! Images and labels in IDX files, the format of MNIST: plain or gzip, any image size.
//!
//! Fields: `images`, of the file's type and size (MNIST: uint8 [28, 28]), and `labels`, int64 for whole numbers.

mod file;
mod resize;

use file::IdxFile;
use pstrain_plugin::prelude::*;
use resize::{Filter, Resize};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The file of images, as it is called with or without `.gz`.
    images: String,
    /// The file of labels; without it there is no field `labels`.
    labels: Option<String>,
    /// Height and width that all images are brought to.
    resize: Option<[usize; 2]>,
    #[serde(default)]
    resize_filter: Filter,
}

struct Idx {
    images: IdxFile,
    labels: Option<IdxFile>,
    resize: Option<Resize>,
}

impl Dataset for Idx {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let images = IdxFile::open(&config.images)?;
        let labels = config.labels.as_deref().map(IdxFile::open).transpose()?;
        if let Some(labels) = &labels {
            ensure!(
                labels.samples() == images.samples(),
                "`{}` has {} images, and `{}` has {} labels\nhint: take both files from the same set",
                images.name(),
                images.samples(),
                labels.name(),
                labels.samples()
            );
        }
        let resize = config.resize.map(|to| {
            let &[height, width] = images.shape() else {
                bail!(
                    "`resize` wants images of [height, width], and those of `{}` are {:?}",
                    images.name(),
                    images.shape()
                );
            };
            ensure!(
                images.dtype() == DType::Uint8,
                "`resize` wants uint8 images, and those of `{}` are {}",
                images.name(),
                images.dtype()
            );
            Resize::new([height as usize, width as usize], to, config.resize_filter)
        });
        Ok(Idx { images, labels, resize: resize.transpose()? })
    }

    fn len(&self) -> u64 {
        self.images.samples()
    }

    fn fields(&self) -> Vec<Field> {
        let shape = match &self.resize {
            Some(resize) => resize.to().map(|size| size as u64).to_vec(),
            None => self.images.shape().to_vec(),
        };
        let mut fields = vec![Field::new("images", self.images.dtype(), shape)];
        if let Some(labels) = &self.labels {
            let dtype = if labels.dtype().is_float() { labels.dtype() } else { DType::Int64 };
            fields.push(Field::new("labels", dtype, labels.shape()));
        }
        fields
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let images = &mut self.images;
        match &mut self.resize {
            Some(resize) => batch.fill(0, |index, to: &mut [u8]| {
                images.read(index, resize.source())?;
                resize.apply(to);
                Ok(())
            })?,
            None => batch.fill_bytes(0, |index, to| images.read(index, to))?,
        }
        match &mut self.labels {
            Some(labels) if labels.dtype().is_float() => {
                batch.fill_bytes(1, |index, to| labels.read(index, to))
            }
            Some(labels) => batch.fill(1, |index, to: &mut [i64]| labels.read_integers(index, to)),
            None => Ok(()),
        }
    }
}

export_dataset!(Idx);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::write_idx;
    use pstrain_plugin::testing;

    fn open(folder: &std::path::Path, more: &str) -> Result<Idx> {
        let path = |name| folder.join(name).display().to_string();
        testing::open(&format!(r#"{{"images": "{}", "labels": "{}"{more}}}"#, path("images"), path("labels")))
    }

    #[test]
    fn a_batch_has_images_as_they_are_and_labels_as_int64() {
        let folder = tempfile::tempdir().unwrap();
        write_idx(&folder.path().join("images"), 0x08, &[3, 2, 2], &(0..12).collect::<Vec<u8>>());
        write_idx(&folder.path().join("labels"), 0x08, &[3], &[7, 8, 9]);
        let mut dataset = open(folder.path(), "").unwrap();
        assert_eq!(dataset.len(), 3);
        assert_eq!(
            dataset.fields(),
            [Field::new("images", DType::Uint8, [2, 2]), Field::new("labels", DType::Int64, [])]
        );
        let batch = testing::batch(&mut dataset, &[2, 0]).unwrap();
        assert_eq!(batch[0].shape, [2, 2, 2]);
        assert_eq!(batch[0].bytes, [8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!(batch[1].values::<i64>(), [9, 7]);
    }

    #[test]
    fn images_are_resized_on_request() {
        let folder = tempfile::tempdir().unwrap();
        write_idx(&folder.path().join("images"), 0x08, &[1, 2, 2], &[10, 20, 30, 40]);
        write_idx(&folder.path().join("labels"), 0x08, &[1], &[0]);
        let mut dataset = open(folder.path(), r#", "resize": [4, 2], "resize_filter": "nearest""#).unwrap();
        assert_eq!(dataset.fields()[0].shape(), [4, 2]);
        let batch = testing::batch(&mut dataset, &[0]).unwrap();
        assert_eq!(batch[0].bytes, [10, 20, 10, 20, 30, 40, 30, 40]);
        let error = open(folder.path(), r#", "resize": [0, 2]"#).err().unwrap().to_string();
        assert_eq!(error, "`resize` = [0, 2]: both sizes must be at least 1 and at most 16384");
    }

    #[test]
    fn images_and_labels_of_different_sets_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_idx(&folder.path().join("images"), 0x08, &[3, 1, 1], &[0, 1, 2]);
        write_idx(&folder.path().join("labels"), 0x08, &[2], &[0, 1]);
        let error = open(folder.path(), "").err().unwrap().to_string();
        assert!(error.contains("has 3 images, and `"), "{error}");
        assert!(error.contains("has 2 labels"), "{error}");
    }
}
