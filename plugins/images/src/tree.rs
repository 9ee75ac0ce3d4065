//! The images of a folder with a folder for each class, in the order in which torchvision's `ImageFolder` has them.

use pstrain_plugin::{Context, Result, anyhow, bail, ensure};
use std::path::Path;

const READ: [&str; 3] = ["jpg", "jpeg", "png"];
/// What `ImageFolder` takes for an image, too. To leave them out would be another data set in silence.
const NOT_READ: [&str; 6] = ["ppm", "bmp", "pgm", "tif", "tiff", "webp"];
/// Their names are kept in memory.
const MOST_FILES: usize = 1 << 24;
const MOST_CLASSES: usize = 1 << 16;
/// A link to a folder above has no end.
const DEEPEST: usize = 32;

/// Files by number, with their classes.
#[derive(Debug, Default)]
pub struct Tree {
    folders: Vec<String>,
    /// All names, one behind the other.
    names: String,
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    folder: u32,
    class: u32,
    /// Where its name ends in `names`.
    end: u32,
}

impl Tree {
    /// The images of the classes that lie in `root`, and how these are called. `known`: what they may be called, in order.
    ///
    /// # Errors
    /// If there is no class, or one without an image, or one that is not known.
    pub fn read(root: &str, known: Option<Vec<String>>) -> Result<(Tree, Vec<String>)> {
        let (found, _) = entries(root)?;
        ensure!(
            !found.is_empty(),
            "`{root}` has no folders\nhint: there is to be a folder for each class, with its images in it"
        );
        ensure!(
            found.len() <= MOST_CLASSES,
            "`{root}` has {} classes; {MOST_CLASSES} are possible",
            found.len()
        );
        let classes = known.unwrap_or_else(|| found.clone());
        let mut tree = Tree::default();
        for class in found {
            let number = classes.binary_search(&class).map_err(|_| {
                anyhow!(
                    "`{root}` has a class `{class}`, and the training images have not\n\
                     hint: their classes are `{}`",
                    shown(&classes)
                )
            })?;
            let before = tree.files.len();
            let mut folders = Vec::new();
            descend(&format!("{root}/{class}"), 0, &mut folders)?;
            folders.sort_unstable();
            for (folder, names) in folders {
                tree.add(folder, names, number as u32)?;
            }
            ensure!(
                tree.files.len() > before,
                "`{root}/{class}` has no image\nhint: they end in .{}; take a class without images away",
                READ.join(", .")
            );
        }
        Ok((tree, classes))
    }

    pub fn len(&self) -> u64 {
        self.files.len() as u64
    }

    pub fn path(&self, index: u64) -> Result<String> {
        let at = index as usize;
        let file = self.files.get(at).with_context(|| format!("there is no image {index}"))?;
        let start = at.checked_sub(1).map_or(0, |before| self.files[before].end as usize);
        Ok(format!("{}/{}", self.folders[file.folder as usize], &self.names[start..file.end as usize]))
    }

    pub fn class(&self, index: u64) -> Result<i64> {
        let file = self.files.get(index as usize).with_context(|| format!("there is no image {index}"))?;
        Ok(file.class.into())
    }

    fn add(&mut self, folder: String, names: Vec<String>, class: u32) -> Result<()> {
        let number = self.folders.len() as u32;
        for name in names {
            self.names.push_str(&name);
            let end = u32::try_from(self.names.len()).ok().filter(|_| self.files.len() < MOST_FILES);
            let end = end.with_context(|| format!("there are more than {MOST_FILES} images"))?;
            self.files.push(File { folder: number, class, end });
        }
        self.folders.push(folder);
        Ok(())
    }
}

/// The folders below `folder`, itself included, each with the images in it.
fn descend(folder: &str, depth: usize, into: &mut Vec<(String, Vec<String>)>) -> Result<()> {
    ensure!(
        depth < DEEPEST,
        "`{folder}` is {DEEPEST} folders deep\nhint: is there a link to a folder above?"
    );
    let (folders, files) = entries(folder)?;
    let mut images = Vec::new();
    for file in files {
        let extension = file.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
        match extension.as_deref() {
            Some(extension) if READ.contains(&extension) => images.push(file),
            Some(extension) if NOT_READ.contains(&extension) => bail!(
                "`{folder}/{file}`: images of .{extension} are not read, and to leave it out would be another data set\n\
                 hint: convert it to PNG, or take it away"
            ),
            _ => {}
        }
    }
    into.push((folder.to_owned(), images));
    folders.iter().try_for_each(|inner| descend(&format!("{folder}/{inner}"), depth + 1, into))
}

/// Names of folders and of files, each in alphabetical order.
fn entries(folder: &str) -> Result<(Vec<String>, Vec<String>)> {
    let cannot = || format!("cannot read the folder `{folder}`");
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(Path::new(folder)).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let name = entry.file_name();
        let name =
            name.to_str().with_context(|| format!("`{folder}` has a name that is not UTF-8: {name:?}"))?;
        let kind = entry.file_type().with_context(cannot)?;
        let is_folder = match kind.is_symlink() {
            true => std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir()),
            false => kind.is_dir(),
        };
        if is_folder { &mut folders } else { &mut files }.push(name.to_owned());
        ensure!(files.len() <= MOST_FILES, "`{folder}` has more than {MOST_FILES} files");
    }
    folders.sort_unstable();
    files.sort_unstable();
    Ok((folders, files))
}

fn shown(classes: &[String]) -> String {
    let more = if classes.len() > 20 { "..." } else { "" };
    let first: Vec<&str> = classes.iter().take(20).map(String::as_str).collect();
    format!("{}{more}", first.join("`, `"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths with their classes' numbers, and the classes.
    type Listed = (Vec<(String, i64)>, Vec<String>);

    fn tree(files: &[&str], known: Option<Vec<String>>) -> Result<Listed, String> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let root = folder.path().display().to_string();
        let plain = |error: pstrain_plugin::Error| error.to_string().replace(&root, "root");
        let (tree, classes) = Tree::read(&root, known).map_err(plain)?;
        let listed = (0..tree.len()).map(|index| {
            (tree.path(index).unwrap().replace(&format!("{root}/"), ""), tree.class(index).unwrap())
        });
        Ok((listed.collect(), classes))
    }

    // From torchvision 0.26.0: [(s[0], s[1]) for s in ImageFolder(root).samples] on these files.
    #[test]
    fn the_order_is_that_of_torchvisions_image_folder() {
        let files = [
            "dog/2.PNG",
            "dog/10.jpg",
            "cat/b/1.png",
            "cat/b-c/1.png",
            "cat/a.jpeg",
            "cat/B.png",
            "cat/notes.txt",
            "cat/b/a/0.png",
            "readme.png",
        ];
        let (listed, classes) = tree(&files, None).unwrap();
        let order = [
            ("cat/B.png", 0),
            ("cat/a.jpeg", 0),
            ("cat/b/1.png", 0),
            ("cat/b-c/1.png", 0),
            ("cat/b/a/0.png", 0),
            ("dog/10.jpg", 1),
            ("dog/2.PNG", 1),
        ];
        assert_eq!(listed, order.map(|(path, class)| (path.to_owned(), class)));
        assert_eq!(classes, ["cat", "dog"]);
    }

    #[test]
    fn test_images_have_the_numbers_of_the_training_images() {
        let known = || Some(vec!["ant".to_owned(), "bee".into(), "cow".into()]);
        assert_eq!(
            tree(&["cow/1.png", "bee/1.png"], known()).unwrap().0,
            [("bee/1.png".into(), 1), ("cow/1.png".into(), 2)]
        );
        assert_eq!(
            tree(&["cat/1.png"], known()).unwrap_err(),
            "`root` has a class `cat`, and the training images have not\nhint: their classes are `ant`, `bee`, `cow`"
        );
    }

    #[test]
    fn what_is_no_data_set_is_told() {
        let error = |files: &[&str]| tree(files, None).unwrap_err();
        assert!(error(&["a.png"]).starts_with("`root` has no folders\nhint: "));
        assert!(error(&["a/b.txt", "b/1.png"]).starts_with("`root/a` has no image\nhint: "));
        assert!(error(&["a/x.webp"]).starts_with("`root/a/x.webp`: images of .webp are not read"));
    }
}
