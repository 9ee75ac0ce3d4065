//! Jobs on the shipped datasets: what they read reaches the model, and the test samples are read as the training ones were.

use std::fs;
use std::path::Path;

use crate::program::*;

/// A job of one trainer, which has the model.
fn job(folder: &Path, module: &str, data: &str, loss: &str, lr: f64) {
    let job = format!(
        r#"
name = "datasets"
[cluster]
world_size = 1
[roles]
trainer = 1
[modules.net]
place = "trainer"
{module}
[data]
root = "."
{data}
[loss]
plugin = "{loss}"
[optimizer]
type = "adam"
lr = {lr}
[train]
epochs = 40
batch_size = 4
"#
    );
    fs::write(folder.join("job.toml"), job).unwrap();
}

/// The loss of the test samples after the run.
#[track_caller]
fn tested(folder: &Path, settings: &[&str]) -> f64 {
    assert_code(&finish(&mut spawn(folder, Some("job.toml"), settings)), 0);
    summary(folder)["eval"]["loss"].as_f64().expect("the loss of the test samples")
}

#[test]
fn csv_numbers_the_texts_of_test_samples_as_those_of_training_samples() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |city: &str, price: &str| format!("{city},{price}\n").repeat(8);
    fs::write(folder.path().join("a.csv"), format!("city,price\n{}", rows("Oslo", "3"))).unwrap();
    fs::write(folder.path().join("b.csv"), format!("price,city\n{}", rows("1", "Bergen"))).unwrap();
    // Alone, Oslo would be the first city and not the second; and nobody knows Trondheim.
    fs::write(folder.path().join("test.csv"), "city,price\nOslo,3\n").unwrap();
    fs::write(folder.path().join("unknown.csv"), "city,price\nTrondheim,0\n").unwrap();
    let fields = r#"fields = [{ name = "city", columns = ["city"], categories = true }, { name = "price", columns = ["price"] }]"#;
    let data = format!(
        "plugin = \"csv\"\nthreads = 2\ntrain = {{ file = [\"a.csv\", \"b.csv\"], {fields} }}\ntest = {{ file = \"test.csv\", {fields} }}"
    );
    let table = r#"
input = [1]
input_dtype = "int64"
layers = [{ type = "embedding", num_embeddings = 3, embedding_dim = 1, padding_idx = 0 }, "flatten"]"#;
    job(folder.path(), table, &data, "mse", 0.1);
    let loss = tested(folder.path(), &[]);
    assert!(loss < 1e-3, "{loss}");
    let state = fs::read_to_string(folder.path().join("RUN/dataset.state")).unwrap();
    assert_eq!(state, r#"{"city":{"categories":[["Bergen","Oslo"]],"means":[]}}"#);
    // The row of what is unknown is the padding, which is 0.
    let loss = tested(folder.path(), &["data.test.file=unknown.csv"]);
    assert_eq!(loss, 0.0);
}

#[test]
fn images_are_read_and_random_crops_repeat_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/images");
    for (class, image) in [("a", "rgb.png"), ("a", "photo.jpg"), ("b", "gray.png"), ("b", "gray.jpg")] {
        for split in ["train", "test"] {
            let place = folder.path().join(split).join(class);
            fs::create_dir_all(&place).unwrap();
            fs::copy(from.join(image), place.join(image)).unwrap();
        }
    }
    let data = r#"
plugin = "images"
normalize = { scale = 255.0, mean = [0.5], std = [0.5] }
train = { folder = "train", resize = 16, crop = 12, random_crop = true, flip = true, shift = 2 }
test = { folder = "test", resize = 16, crop = 12 }"#;
    let model = "input = [3, 12, 12]\nlayers = [\"flatten\", { type = \"linear\", in_features = 432, out_features = 2 }]";
    job(folder.path(), model, data, "cross_entropy", 0.01);
    let run = |settings: &[&str]| {
        let loss = tested(folder.path(), settings);
        (loss, fs::read(crate::program::model(folder.path())).unwrap())
    };
    let (loss, first) = run(&[]);
    // Of a model that has learnt nothing it is 0.69.
    assert!(loss < 0.5, "{loss}");
    assert!(
        run(&["data.threads=3", "data.train.cache_mb=0"]).1 == first,
        "another number of threads is another run"
    );
    assert!(run(&["data.train.random_crop=false"]).1 != first, "nothing is random");
}

/// An image is opened with the first samples, which are looked at before anything begins.
#[test]
fn a_pipe_among_the_images_holds_whoever_looks_at_the_job_up_for_a_while_only() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("train/a")).unwrap();
    nix::unistd::mkfifo(&folder.path().join("train/a/pipe.png"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let data = "plugin = \"images\"\ntrain = { folder = \"train\", resize = 12, crop = 12 }";
    let model = "input = [3, 12, 12]\nlayers = [\"flatten\", { type = \"linear\", in_features = 432, out_features = 2 }]";
    job(folder.path(), model, data, "cross_entropy", 0.01);
    let limit = ["--set", "plugins.time_ms=500"];
    for command in [["check", "job.toml"].as_slice(), &["spawn", "job.toml", "--master-port", "0"]] {
        let output = finish(pstrain(folder.path()).args(command).args(limit));
        assert_code(&output, 2);
        let said = stderr(&output);
        assert!(said.contains("plug-in `images` has not come back from `batch` within 5.5s"), "{said}");
        assert!(said.contains("`plugins.time_ms` is for slow ones"), "{said}");
    }
}

#[test]
fn text_becomes_characters_and_the_next_ones() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.txt"), "ab".repeat(40)).unwrap();
    fs::write(folder.path().join("test.txt"), "ba".repeat(5)).unwrap();
    let data = r#"
plugin = "text"
train = { file = "train.txt", length = 4, unit = "characters" }
test = { file = "test.txt", length = 4, unit = "characters" }"#;
    let table = r#"
input = [4]
input_dtype = "int64"
layers = [{ type = "embedding", num_embeddings = 3, embedding_dim = 3 }, { type = "permute", dims = [0, 2, 1] }]"#;
    job(folder.path(), table, data, "cross_entropy", 0.1);
    let loss = tested(folder.path(), &[]);
    assert!(loss < 0.05, "{loss}");
    assert_eq!(fs::read_to_string(folder.path().join("RUN/dataset.state")).unwrap(), "ab");
}

#[test]
fn criteo_and_npy_train_a_linear_model() {
    let folder = tempfile::tempdir().unwrap();
    let line = |click: usize| {
        let dense = format!("\t{}", 50 * click).repeat(13);
        format!("{click}{dense}{}\n", "\t0a1b".repeat(26))
    };
    fs::write(folder.path().join("train.tsv"), (0..16).map(|n| line(n % 2)).collect::<String>()).unwrap();
    let data = r#"
plugin = "criteo"
target = "click"
train = { file = "train.tsv", rows = 10 }
test = { file = "train.tsv", rows = 10 }"#;
    let model = "input = [13]\nlayers = [{ type = \"linear\", in_features = 13, out_features = 1 }]";
    job(folder.path(), model, data, "bce_with_logits", 0.1);
    let loss = tested(folder.path(), &[]);
    assert!(loss < 0.1, "{loss}");

    let array = |shape: &str, numbers: Vec<f32>| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        [
            b"\x93NUMPY\x01\x00".to_vec(),
            (header.len() as u16).to_le_bytes().into(),
            header.into_bytes(),
            bytes,
        ]
        .concat()
    };
    let numbers = |n: usize| (0..n).map(|n| (n * 7 % 5) as f32).collect::<Vec<f32>>();
    fs::write(folder.path().join("x.npy"), array("(16, 1)", numbers(16))).unwrap();
    fs::write(folder.path().join("y.npy"), array("(16, 1)", numbers(16).iter().map(|x| 2.0 * x).collect()))
        .unwrap();
    let split = r#"{ file = ["x.npy", "y.npy"] }"#;
    let data = format!("plugin = \"npy\"\ntrain = {split}\ntest = {split}");
    let model = "input = [1]\nlayers = [{ type = \"linear\", in_features = 1, out_features = 1 }]";
    job(folder.path(), model, &data, "mse", 0.1);
    let loss = tested(folder.path(), &[]);
    assert!(loss < 0.1, "{loss}");
}

#[test]
fn parquet_trains_a_linear_model() {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parquet/snappy.parquet");
    fs::copy(from, folder.path().join("a.parquet")).unwrap();
    // 10 r and 10 r + 2.
    let split = r#"{ file = "a.parquet", fields = [{ name = "x", columns = ["i32"], dtype = "float32" }, { name = "y", columns = ["f32"] }] }"#;
    let data = format!("plugin = \"parquet\"\ntrain = {split}\ntest = {split}");
    let model = "input = [1]\nlayers = [{ type = \"linear\", in_features = 1, out_features = 1 }]";
    job(folder.path(), model, &data, "mse", 0.05);
    let loss = tested(folder.path(), &[]);
    // Of a model that has learnt nothing it is above 1,000.
    assert!(loss < 100.0, "{loss}");
}
