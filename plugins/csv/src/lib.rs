//! Tables in CSV files. Fields: `features` [columns] and, if there is a target, `target` (a scalar for one column).
//!
//! Columns are named by the header's names, or by their position from 0.

mod table;

use pstrain_plugin::prelude::*;
use table::{Column, Layout, Number, Target, Values};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    file: String,
    /// Whether the first line has the columns' names: it should, if nothing is said.
    header: Option<bool>,
    #[serde(default = "comma")]
    delimiter: char,
    /// What the model sees; all columns but the target if not given.
    features: Option<Vec<Column>>,
    #[serde(default)]
    feature_dtype: Number,
    /// One column or several; without it there is no field `target`.
    target: Option<OneOrMore>,
    /// float32 if not given, or int64 where `target_classes` are.
    target_dtype: Option<Number>,
    /// The texts that the target column has, in the order of their class numbers.
    target_classes: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted a column's name or position, or a list of them")]
enum OneOrMore {
    One(Column),
    More(Vec<Column>),
}

fn comma() -> char {
    ','
}

struct Csv {
    rows: u64,
    features: Values,
    columns: u64,
    target: Option<Values>,
    /// Of one sample's target.
    target_shape: Vec<u64>,
}

impl Dataset for Csv {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let (target, target_shape) = target_of(&config)?;
        let layout = Layout {
            header: config.header,
            delimiter: u8::try_from(config.delimiter)
                .ok()
                .filter(u8::is_ascii)
                .with_context(|| format!("`delimiter` = {:?} is not an ASCII character", config.delimiter))?,
            features: config.features,
            feature_dtype: config.feature_dtype,
            target,
        };
        let table = table::read(&config.file, data::open(&config.file)?, &layout)?;
        let columns = table.columns as u64;
        Ok(Csv { rows: table.rows, features: table.features, columns, target: table.target, target_shape })
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn fields(&self) -> Vec<Field> {
        let mut fields = vec![Field::new("features", self.features.dtype(), [self.columns])];
        if let Some(target) = &self.target {
            fields.push(Field::new("target", target.dtype(), self.target_shape.clone()));
        }
        fields
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        self.features.give(batch, 0)?;
        self.target.as_ref().map_or(Ok(()), |target| target.give(batch, 1))
    }
}

/// What is to be read as the target, and the shape of one sample's.
fn target_of(config: &Config) -> Result<(Option<Target>, Vec<u64>)> {
    let (columns, shape) = match &config.target {
        None => {
            ensure!(config.target_classes.is_none(), "`target_classes` is given without `target`");
            ensure!(config.target_dtype.is_none(), "`target_dtype` is given without `target`");
            return Ok((None, Vec::new()));
        }
        Some(OneOrMore::One(column)) => (vec![column.clone()], Vec::new()),
        Some(OneOrMore::More(columns)) => (columns.clone(), vec![columns.len() as u64]),
    };
    ensure!(!columns.is_empty(), "`target` is an empty list\nhint: leave the key out if there is no target");
    let classes = config.target_classes.clone();
    for (at, class) in classes.iter().flatten().enumerate() {
        ensure!(
            !classes.iter().flatten().take(at).any(|before| before == class),
            "`target_classes` has `{class}` twice: each class has one number"
        );
    }
    ensure!(
        classes.is_none() || config.target_dtype != Some(Number::Float32),
        "`target_classes` give class numbers, which are int64: `target_dtype` cannot be float32"
    );
    let dtype =
        config.target_dtype.unwrap_or(if classes.is_some() { Number::Int64 } else { Number::Float32 });
    Ok((Some(Target { columns, dtype, classes }), shape))
}

export_dataset!(Csv);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use pstrain_plugin::testing::{self, Emitted};

    const HOUSES: &str =
        "rooms,price,\"size, m2\",kind\n3,100.5,70,flat\n5,250,\"120\",house\n1,80,25,flat\n";

    fn open(text: &str, more: &str) -> Result<Csv> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("houses.csv");
        std::fs::write(&path, text).unwrap();
        testing::open(&format!(r#"{{"file": "{}"{more}}}"#, path.display()))
    }

    fn all(text: &str, more: &str) -> Vec<Emitted> {
        let mut dataset = open(text, more).unwrap();
        let indices: Vec<u64> = (0..dataset.len()).collect();
        testing::batch(&mut dataset, &indices).unwrap()
    }

    /// Without the folder's name, which is another each time.
    fn error(text: &str, more: &str) -> String {
        let error = open(text, more).err().unwrap().to_string();
        match (error.find('`'), error.find("houses.csv")) {
            (Some(start), Some(end)) if start < end => format!("{}{}", &error[..=start], &error[end..]),
            _ => error,
        }
    }

    #[test]
    fn columns_are_taken_by_name_in_the_order_given() {
        let fields = all(HOUSES, r#", "features": ["size, m2", "rooms"], "target": "price""#);
        assert_eq!(fields[0].shape, [3, 2]);
        assert_eq!(fields[0].values::<f32>(), [70.0, 3.0, 120.0, 5.0, 25.0, 1.0]);
        assert_eq!(fields[1].shape, [3]);
        assert_eq!(fields[1].values::<f32>(), [100.5, 250.0, 80.0]);
    }

    #[test]
    fn columns_are_taken_by_position_without_a_header() {
        let more = r#", "header": false, "delimiter": ";", "target": [2, 1], "feature_dtype": "int64""#;
        let fields = all("1;2;3\n4;5;6\n", more);
        assert_eq!(fields[0].values::<i64>(), [1, 4]);
        assert_eq!(fields[1].shape, [2, 2]);
        assert_eq!(fields[1].values::<f32>(), [3.0, 2.0, 6.0, 5.0]);
    }

    #[test]
    fn texts_become_class_numbers() {
        let more = r#", "features": ["rooms"], "target": "kind", "target_classes": ["house", "flat"]"#;
        assert_eq!(all(HOUSES, more)[1].values::<i64>(), [1, 0, 1]);
        let more = r#", "features": ["rooms"], "target": "kind", "target_classes": ["house", "hut"]"#;
        assert_eq!(
            error(HOUSES, more),
            "`houses.csv`, line 2, column `kind`: `flat` is not one of the classes `house`, `hut`"
        );
    }

    #[test]
    fn without_a_target_all_columns_are_features() {
        let fields = all("a,b\n1,2\n", "");
        assert_eq!(fields.len(), 1);
        assert_eq!(fields[0].values::<f32>(), [1.0, 2.0]);
    }

    #[test]
    fn a_bad_cell_is_named_by_line_and_column() {
        let text = "a,b\n1,2\n\n3,x\n";
        assert_eq!(error(text, ""), "`houses.csv`, line 4, column `b`: `x` is not a number");
        assert_eq!(error("a,b\n1,\n", ""), "`houses.csv`, line 2, column `b`: the cell is empty");
        assert_eq!(
            error("1,nan\n", r#", "header": false"#),
            "`houses.csv`, line 1, column 1: `nan` is not a finite number"
        );
        assert_eq!(
            error("a\n1.5\n", r#", "feature_dtype": "int64""#),
            "`houses.csv`, line 2, column `a`: `1.5` is not a whole number"
        );
        assert_eq!(error("a,b\n1,2\n3\n", ""), "`houses.csv`, line 3: it has 1 cells, and 2 are wanted");
    }

    #[test]
    fn a_column_that_is_not_there_is_named_with_those_that_are() {
        assert_eq!(
            error("a,b\n1,2\n", r#", "target": "c""#),
            "`houses.csv` has no column `c`; it has `a`, `b`"
        );
        assert_eq!(
            error("a,b\n1,2\n", r#", "features": [2]"#),
            "`houses.csv` has no column 2: it has 2, counted from 0"
        );
        assert_eq!(
            error("1,2\n", r#", "header": false, "target": "a""#),
            "`houses.csv` has no header, so column `a` cannot be found by its name\nhint: give positions, counted from 0, or `header = true`"
        );
        assert_eq!(error("a,b\n", ""), "`houses.csv` has no rows");
        assert_eq!(error("a\n1\n", r#", "target": "a""#), "`houses.csv` has no columns for `features`");
    }

    #[test]
    fn numbers_are_not_taken_for_names() {
        assert!(error("1.5,2\n3,4\n", "").starts_with("the first line of `"));
        assert_eq!(all("0,1\n3,4\n", "")[0].values::<f32>(), [3.0, 4.0]);
        assert_eq!(all("1.5,2\n3,4\n", r#", "header": true"#)[0].values::<f32>(), [3.0, 4.0]);
    }

    #[test]
    fn no_column_and_no_class_counts_twice() {
        let twice = |more| open("a,b,b,c\n1,2,3,4\n", more).err().unwrap().to_string();
        let ends = |told: String, end: &str| assert!(told.ends_with(end), "{told}");
        ends(twice(r#", "features": ["a", 0]"#), "`features` names column `a` twice");
        ends(twice(r#", "features": ["a"], "target": [3, "c"]"#), "`target` names column `c` twice");
        ends(
            twice(r#", "features": ["a", "c"], "target": 3"#),
            "column `c` is one of `features` and of `target`: the model would see what it is to predict\n\
             hint: leave it out of `features`; a model that gives back its input takes data.target = \"features\"",
        );
        ends(
            twice(r#", "target": "b""#),
            "has two columns `b`, 1 and 2, counted from 0\nhint: give the position of the one that is meant",
        );
        let classes = r#", "target": "a", "target_classes": ["x", "y", "x"]"#;
        ends(twice(classes), "`target_classes` has `x` twice: each class has one number");
    }

    fn cell() -> impl Strategy<Value = String> {
        prop_oneof!["-?[0-9]{1,3}(\\.[0-9])?", "[a-c \"',;]{0,3}", Just(String::new()), "\\PC{0,4}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the bytes and the keys are, the file is read or refused.
        #[test]
        fn any_file_is_read_or_refused(
            rows in prop::collection::vec(prop::collection::vec(cell(), 0..4), 0..5),
            noise in prop::collection::vec(any::<u8>(), 0..8),
            features in prop::option::of(prop::collection::vec(0..5usize, 0..3)),
            target in prop::option::of(0..5usize),
            header: Option<bool>,
            whole: bool,
        ) {
            let text: Vec<String> = rows.iter().map(|row| row.join(",")).collect();
            let bytes = [text.join("\n").into_bytes(), noise].concat();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("any.csv");
            std::fs::write(&path, bytes).unwrap();
            let mut keys = serde_json::json!({ "file": path, "features": features, "target": target, "header": header });
            if whole {
                keys["feature_dtype"] = "int64".into();
            }
            match testing::open::<Csv>(&keys.to_string()) {
                Ok(mut dataset) => {
                    let last = dataset.len() - 1;
                    let fields = testing::batch(&mut dataset, &[0, last]).unwrap();
                    prop_assert_eq!(fields.len(), 1 + usize::from(target.is_some()));
                    prop_assert_eq!(fields[0].shape[0], 2);
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }

        /// What is written is what is read.
        #[test]
        fn numbers_come_back(rows in prop::collection::vec(prop::array::uniform3(-1e6f32..1e6), 1..20)) {
            let lines = rows.iter().map(|[a, b, c]| format!("{a},{b},{c}\n"));
            let text: String = std::iter::once("x,y,z\n".to_owned()).chain(lines).collect();
            let fields = all(&text, r#", "target": "y""#);
            let features: Vec<f32> = rows.iter().flat_map(|[a, _, c]| [*a, *c]).collect();
            prop_assert_eq!(fields[0].values::<f32>(), features);
            prop_assert_eq!(fields[1].values::<f32>(), rows.iter().map(|[_, b, _]| *b).collect::<Vec<f32>>());
        }
    }

    #[test]
    fn contradicting_keys_are_refused() {
        let error = |more| open(HOUSES, more).err().unwrap().to_string();
        assert_eq!(error(r#", "delimiter": "é""#), "`delimiter` = 'é' is not an ASCII character");
        assert_eq!(error(r#", "target_dtype": "int64""#), "`target_dtype` is given without `target`");
        assert_eq!(
            error(r#", "target": {}"#),
            "key `target`: wanted a column's name or position, or a list of them"
        );
    }
}
