//! Mistakes in the data of a job: what `check` says of each, and that `spawn` says the same before any rank starts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::program::*;

/// A module of so many numbers, three or more.
const LINEAR: &str = "input = [N]\nlayers = [{ type = \"linear\", in_features = N, out_features = 1 }]";
/// A module of so many different ids.
const TABLE: &str = "input = [N]\ninput_dtype = \"int64\"\nlayers = [\n  \
                     { type = \"embedding\", num_embeddings = 300, embedding_dim = 1 }, \"flatten\",\n  \
                     { type = \"linear\", in_features = N, out_features = 1 },\n]";

fn linear(inputs: u32) -> String {
    LINEAR.replace('N', &inputs.to_string())
}

fn table(ids: u32) -> String {
    TABLE.replace('N', &ids.to_string())
}

/// A folder with data, and jobs that read them wrongly.
struct Mistakes {
    folder: tempfile::TempDir,
    plugin: &'static str,
    loss: &'static str,
    said: String,
}

impl Mistakes {
    fn in_data(plugin: &'static str, files: &[(&str, &[u8])]) -> Mistakes {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        for (name, bytes) in files {
            let path = data.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        Mistakes { folder, plugin, loss: "mse", said: String::new() }
    }

    fn of_classes(self) -> Mistakes {
        Mistakes { loss: "cross_entropy", ..self }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, module: &str, train: &str) {
        let Mistakes { plugin, loss, .. } = self;
        let job = format!(
            "name = \"mistakes\"\n[cluster]\nworld_size = 1\n[roles]\ntrainer = 1\n[modules.net]\nplace = \"trainer\"\n\
             {module}\n[data]\nroot = \"data\"\nplugin = \"{plugin}\"\n{train}\n[loss]\nplugin = \"{loss}\"\n\
             [optimizer]\ntype = \"sgd\"\nlr = 0.1\n[train]\nbatch_size = 2\n"
        );
        fs::write(self.path().join("job.toml"), job).unwrap();
    }

    /// `data`: the keys of `data.train`, or lines of `[data]` that begin with `train`.
    #[track_caller]
    fn mistake(&mut self, module: &str, data: &str) {
        let train = if data.starts_with("train") { data.to_owned() } else { format!("train = {{ {data} }}") };
        self.write(module, &train);
        let output = finish(pstrain(self.path()).args(["check", "job.toml"]));
        assert_code(&output, 2);
        writeln!(self.said, "{data}\n{}", stderr(&output)).unwrap();
    }

    /// The last job: `spawn` refuses it in the same words, and has not begun to run it.
    #[track_caller]
    fn refused_before_any_rank_starts(self) -> String {
        let output = finish(&mut spawn(self.path(), Some("job.toml"), &[]));
        assert_code(&output, 2);
        let said = stderr(&output);
        assert!(self.said.trim_end().ends_with(said.trim_end()), "{said}");
        assert!(!self.path().join("RUN").exists(), "it has a run folder");
        self.said
    }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)).unwrap()
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn categories_of_csv() {
    let mut of = Mistakes::in_data(
        "csv",
        &[
            ("houses.csv", b"city,rooms,price\nOslo,3,1\nBergen,2,1\n"),
            ("more.csv", b"city,rooms,price\nVoss,3,1\n"),
        ],
    );
    let file = r#"file = "houses.csv""#;
    let price = r#"{ name = "price", columns = ["price"] }"#;
    for field in [
        r#"{ name = "city", columns = ["town"], categories = true }"#,
        r#"{ name = "city", columns = ["city"], categories = true, dtype = "float32" }"#,
        r#"{ name = "city", columns = ["city"], categories = true, missing = 0 }"#,
        r#"{ name = "city", columns = ["city"], classes = ["Oslo"] }"#,
        r#"{ name = "city", columns = ["city", "rooms"], categories = true }"#,
        r#"{ name = "city", columns = ["rooms"], min_count = 2 }"#,
    ] {
        of.mistake(&table(1), &format!("{file}, fields = [{field}, {price}]"));
    }
    // What the training samples settle goes by columns.
    let one = format!("fields = [{{ name = \"city\", columns = [\"city\"], categories = true }}, {price}]");
    let two = one.replace("[\"city\"]", "[\"city\", \"rooms\"]");
    of.mistake(&table(1), &format!("train = {{ {file}, {one} }}\ntest = {{ file = \"more.csv\", {two} }}"));
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn gaps_of_csv() {
    let mut of = Mistakes::in_data("csv", &[("houses.csv", b"age,rooms,price\n1,3,1\n,NA,1\n2,3,\n")]);
    let field = |more: &str| {
        let field = format!("{{ name = \"x\", columns = [\"age\", \"rooms\"]{more} }}");
        format!(
            "file = \"houses.csv\", fields = [{field}, {{ name = \"y\", columns = [\"price\"], missing = 0 }}]"
        )
    };
    of.mistake(&linear(2), &field(""));
    of.mistake(&linear(2), &field(", missing = 0"));
    of.mistake(&linear(2), &field(", missing = \"median\""));
    of.mistake(&linear(2), &field(", missing = \"mean\", dtype = \"int64\""));
    of.mistake(&linear(2), &field(", missing = 0.5, dtype = \"int64\""));
    of.mistake(&linear(2), &field(", indicator = true"));
    of.mistake(&linear(2), &(field(", missing = 0, indicator = true") + ", missing_values = [\"NA\"]"));
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

#[test]
fn fields_of_csv() {
    let mut of = Mistakes::in_data(
        "csv",
        &[
            ("a.csv", b"x,y\n1,2\n3,4\n"),
            ("b.csv", b"x,z\n1,2\n"),
            ("cut.csv", b"x,y\n1,2\n3\n"),
            ("word.csv", b"x,y\n1,2\n3,four\n"),
        ],
    );
    let fields = |file: &str, fields: &str| format!("file = {file}, fields = [{fields}]");
    let both = r#"{ name = "x", columns = ["x"] }, { name = "y", columns = ["y"] }"#;
    of.mistake(&linear(1), &fields(r#""no.csv""#, both));
    of.mistake(&linear(1), &fields(r#""d*.csv""#, both));
    of.mistake(&linear(1), &fields(r#"["a.csv", "b.csv"]"#, both));
    of.mistake(&linear(1), &fields(r#""cut.csv""#, both));
    of.mistake(&linear(1), &fields(r#""word.csv""#, both));
    of.mistake(&linear(1), &fields(r#""a.csv""#, r#"{ name = "x", columns = ["x", "x"] }"#));
    of.mistake(&linear(1), &fields(r#""a.csv""#, r#"{ name = "x", columms = ["x"] }"#));
    of.mistake(&linear(1), &(fields(r#""a.csv""#, both) + r#", target = "y""#));
    of.mistake(&table(1), &fields(r#""a.csv""#, both));
    of.mistake(&linear(3), &fields(r#""a.csv""#, both));
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn folders_of_images() {
    let rgb = fixture("images/rgb.png");
    let digits = pstrain::runner::builtin::unpack("digit_images").unwrap();
    let digit = fs::read_dir(digits.join("test/0")).unwrap().next().unwrap().unwrap();
    let digit = fs::read(digit.path()).unwrap();
    let cut = &rgb[..rgb.len() / 2];
    let mut of = Mistakes::in_data(
        "images",
        &[
            ("one/cat/1.png", &rgb),
            ("one/dog/1.png", &rgb),
            ("other/cow/1.png", &rgb),
            ("empty/cat/notes.txt", b"none"),
            ("flat/1.png", &rgb),
            ("sizes/cat/1.png", &rgb),
            ("sizes/dog/1.png", &digit),
            ("webp/cat/1.webp", &rgb),
            ("text/cat/1.png", b"no image"),
            ("cut/cat/1.png", cut),
        ],
    )
    .of_classes();
    let model = "input = [3, 8, 8]\nlayers = [\"flatten\", { type = \"linear\", in_features = 192, out_features = 2 }]";
    for data in [
        r#"folder = "no""#,
        r#"folder = "flat", resize = [8, 8]"#,
        r#"folder = "empty", resize = [8, 8]"#,
        r#"folder = "webp", resize = [8, 8]"#,
        r#"folder = "text", resize = [8, 8]"#,
        r#"folder = "cut", resize = [8, 8]"#,
        r#"folder = "one", resize = [8, 8], channels = 2"#,
        r#"folder = "one", resize = 8, crop = 9"#,
        r#"folder = "one", random_crop = true"#,
        r#"folder = "one", resize = [9, 9]"#,
        "train = { folder = \"one\", resize = [8, 8] }\ntest = { folder = \"other\", resize = [8, 8] }",
    ] {
        of.mistake(model, data);
    }
    // Sizes differ, and nothing brings them to one.
    let side = |at: usize| u32::from_be_bytes(rgb[at..at + 4].try_into().unwrap());
    let (width, height) = (side(16), side(20));
    let input = format!("input = [3, {height}, {width}]");
    let features = format!("in_features = {}", 3 * height * width);
    let model = model.replace("input = [3, 8, 8]", &input).replace("in_features = 192", &features);
    let data = r#"folder = "sizes""#;
    of.mistake(&model, data);
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn texts() {
    let mut of = Mistakes::in_data(
        "text",
        &[
            ("book.txt", b"a book of some words"),
            ("latin.txt", b"caf\xe9, caf\xe9, caf\xe9"),
            ("no.json", b"{"),
            ("other.json", b"{}"),
        ],
    )
    .of_classes();
    let model = "input = [4]\ninput_dtype = \"int64\"\nlayers = [\n  \
                 { type = \"embedding\", num_embeddings = 256, embedding_dim = 256 },\n  { type = \"permute\", dims = [0, 2, 1] },\n]";
    of.mistake(model, r#"file = "novel.txt", length = 4"#);
    of.mistake(model, r#"file = "book.txt", length = 40"#);
    of.mistake(model, r#"file = "latin.txt", length = 4, unit = "characters""#);
    of.mistake(model, r#"file = "book.txt", length = 4, unit = "tokens""#);
    of.mistake(model, r#"file = "book.txt", length = 4, unit = "tokens", tokenizer = "no.json""#);
    of.mistake(model, r#"file = "book.txt", length = 4, unit = "tokens", tokenizer = "other.json""#);
    of.mistake(model, r#"file = "book.txt", length = 5"#);
    of.mistake(
        &model.replace("256, embedding_dim", "100, embedding_dim"),
        r#"file = "book.txt", length = 4"#,
    );
    let straight = model.replace(",\n  { type = \"permute\", dims = [0, 2, 1] }", "");
    of.mistake(&straight, r#"file = "book.txt", length = 4"#);
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn logs_of_criteo() {
    let line = |label: &str, dense: &str, category: &str| {
        [vec![label; 1], vec![dense; 13], vec![category; 26]].concat().join("\t") + "\n"
    };
    let good = line("1", "3", "0a1b");
    let files = [
        ("good.tsv", good.clone()),
        ("cut.tsv", good.clone() + "1\t2\t3\n"),
        ("label.tsv", good.clone() + &line("2", "3", "0a1b")),
        ("dense.tsv", good.clone() + &line("0", "3.5", "0a1b")),
        ("category.tsv", good.clone() + &line("0", "3", "city")),
        ("empty.tsv", String::new()),
    ];
    let mut of = Mistakes::in_data("criteo", &files.each_ref().map(|(name, text)| (*name, text.as_bytes())));
    for data in [
        r#"file = "no.tsv", rows = 100"#,
        r#"file = "cut.tsv", rows = 100"#,
        r#"file = "label.tsv", rows = 100"#,
        r#"file = "dense.tsv", rows = 100"#,
        r#"file = "category.tsv", rows = 100"#,
        r#"file = "empty.tsv", rows = 100"#,
        r#"file = "good.tsv", rows = [100, 200]"#,
        r#"file = "good.tsv", rows = 0"#,
        r#"file = "good.tsv", rows = 100"#,
    ] {
        of.mistake(&linear(12), data);
    }
    // The dense numbers and the categories: nothing says that the click is the target.
    of.mistake(&linear(13), r#"file = "good.tsv", rows = 100"#);
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

/// A file of NumPy; `more` stands behind its header.
fn array(descr: &str, shape: &str, more: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), more].concat()
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn arrays_of_numpy() {
    let numbers = [0; 4 * 4 * 3];
    let mut of = Mistakes::in_data(
        "npy",
        &[
            ("x.npy", &array("'<f4'", "(4, 3)", &numbers)),
            ("y.npy", &array("'<f4'", "(4, 1)", &numbers[..16])),
            ("three.npy", &array("'<f4'", "(3, 1)", &numbers[..12])),
            ("cut.npy", &array("'<f4'", "(4, 3)", &numbers[..40])),
            ("text.npy", b"1, 2, 3"),
            ("names.npy", &array("'<U4'", "(4,)", &numbers)),
            ("objects.npy", &array("'|O'", "(4,)", b"pickle")),
            ("table.npy", &array("[('x', '<f4'), ('y', '<f4')]", "(4,)", &numbers)),
        ],
    );
    let with = |file: &str| format!("file = [\"{file}\", \"y.npy\"]");
    for file in ["no.npy", "three.npy", "cut.npy", "text.npy", "names.npy", "objects.npy", "table.npy"] {
        of.mistake(&linear(3), &with(file));
    }
    of.mistake(&linear(3), r#"file = ["x.npy", "y.npy"], fields = ["x", "z"]"#);
    of.mistake(&linear(4), &with("x.npy"));
    of.mistake(&table(3), &with("x.npy"));
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn files_of_parquet() {
    let (snappy, zstd) = (fixture("parquet/snappy.parquet"), fixture("parquet/zstd.parquet"));
    let mut of = Mistakes::in_data(
        "parquet",
        &[
            ("a.parquet", &snappy),
            ("zstd.parquet", &zstd),
            ("cut.parquet", &snappy[..100]),
            ("a.csv", b"x,y\n1,2\n"),
        ],
    );
    let field = |column: &str| {
        format!(
            "fields = [{{ name = \"x\", columns = [\"{column}\"] }}, {{ name = \"y\", columns = [\"f32\"] }}]"
        )
    };
    for (file, fields) in [
        ("no.parquet", field("i32")),
        ("a.csv", field("i32")),
        ("cut.parquet", field("i32")),
        ("zstd.parquet", field("i32")),
        ("a.parquet", field("i33")),
        ("a.parquet", field("text")),
        ("a.parquet", field("list")),
        ("a.parquet", field("maybe")),
        ("a.parquet", field("i32\", \"i32")),
    ] {
        of.mistake(&linear(1), &format!("file = \"{file}\", {fields}"));
    }
    of.mistake(&table(1), &format!("file = \"a.parquet\", {}", field("f64")));
    insta::assert_snapshot!(of.refused_before_any_rank_starts());
}
