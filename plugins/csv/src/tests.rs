use super::*;
use proptest::prelude::*;
use pstrain_plugin::testing::{self, Emitted};

const HOUSES: &str = "rooms,price,\"size, m2\",kind\n3,100.5,70,flat\n5,250,\"120\",house\n1,80,25,flat\n";

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
        "`houses.csv`, line 2, column `kind`: `flat` is not one of the classes `house`, `hut`\n\
         hint: name it there, too; `categories = true` in a field of `fields` finds all texts"
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
    let no_number = "name it in `missing_values` if it stands for no value";
    assert_eq!(
        error(text, ""),
        format!(
            "`houses.csv`, line 4, column `b`: `x` is not a number\n\
             hint: {no_number}; texts are numbered by `categories = true` in a field of `fields`"
        )
    );
    assert_eq!(
        error("a,b\n1,\n", ""),
        "`houses.csv`, line 2, column `b`: the cell is empty\n\
         hint: a field of `fields` has `missing` to fill such cells: a number, or \"mean\""
    );
    assert_eq!(
        error("1,nan\n", r#", "header": false"#),
        format!("`houses.csv`, line 1, column 1: `nan` is not a finite number\nhint: {no_number}")
    );
    let whole = r#", "feature_dtype": "int64""#;
    assert_eq!(
        error("a\n1.5\n", whole),
        "`houses.csv`, line 2, column `a`: `1.5` is not a whole number\nhint: float32 takes fractions"
    );
    assert!(error("a\nx\n", whole).contains(&format!("`x` is not a whole number\nhint: {no_number}; ")));
    assert_eq!(
        error("a,b\n1,2\n3\n", ""),
        "`houses.csv`, line 3: it has 1 cells, and 2 are wanted\n\
         hint: a row has a cell for each column, be it an empty one"
    );
    assert_eq!(
        error("a,b\n1,2,3\n1,2\n", ""),
        "`houses.csv`, line 3: it has 2 cells, and 3 are wanted\n\
         hint: a row has a cell for each column, be it an empty one"
    );
    assert_eq!(
        error("a,b\n1,2\n1,2,3\n", ""),
        "`houses.csv`, line 3: it has 3 cells, and 2 are wanted\n\
         hint: a cell with a delimiter in it has to stand between double quotes"
    );
}

#[test]
fn a_column_that_is_not_there_is_named_with_those_that_are() {
    assert_eq!(error("a,b\n1,2\n", r#", "target": "c""#), "`houses.csv` has no column `c`; it has `a`, `b`");
    assert_eq!(
        error("a,b\n1,2\n", r#", "features": [2]"#),
        "`houses.csv` has no column 2: it has 2, counted from 0"
    );
    assert_eq!(
        error("1,2\n", r#", "header": false, "target": "a""#),
        "`houses.csv` has no header, so column `a` cannot be found by its name\nhint: give positions, counted from 0, or `header = true`"
    );
    assert_eq!(
        error("a;b\n1;2\n", r#", "target": "b""#),
        "`houses.csv` has no column `b`; it has `a;b`\nhint: if they are several columns, set `delimiter = ';'`"
    );
    assert_eq!(
        error("a,b\n", ""),
        "`houses.csv` has no rows\n\
         hint: its first line was taken for the columns' names; `header = false` says that it is a row"
    );
    assert_eq!(error("", ""), "`houses.csv` has no rows");
    assert_eq!(
        error("a\n1\n", r#", "target": "a""#),
        "`houses.csv` has no columns for `features`\n\
         hint: all of its columns are the target: there has to be one that a model sees"
    );
    assert_eq!(
        error("a\n1\n", r#", "features": []"#),
        "`houses.csv` has no columns for `features`\nhint: leave the key out for all columns but the target"
    );
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
    ends(
        twice(r#", "features": ["a", 0]"#),
        "`features` names column `a` twice\nhint: leave one of them out",
    );
    ends(
        twice(r#", "features": ["a"], "target": [3, "c"]"#),
        "`target` names column `c` twice\nhint: leave one of them out",
    );
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
    ends(
        twice(classes),
        "`target_classes` has `x` twice: each class has one number\nhint: leave one of them out",
    );
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
    assert_eq!(
        error(r#", "delimiter": "é""#),
        "`delimiter` = 'é' is not an ASCII character\nhint: most files have \",\", \";\" or \"\\t\""
    );
    assert_eq!(
        error(r#", "target_dtype": "int64""#),
        "`target_dtype` is given without `target`\nhint: set `target` to a column's name or position"
    );
    assert_eq!(
        error(r#", "target": {}"#),
        "key `target`: wanted a column's name or position, or a list of them"
    );
}

/// Written to files of these names; `config` says `FOLDER` where they are.
fn opened(files: &[(&str, &str)], config: &str, state: Option<&[u8]>) -> Result<Csv> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let config = config.replace("FOLDER", &folder.path().display().to_string());
    match state {
        None => testing::open(&config),
        Some(state) => testing::open_with(&config, state),
    }
    .map_err(|error| {
        anyhow!("{}", format!("{error:#}").replace(&format!("{}/", folder.path().display()), ""))
    })
}

const PEOPLE: &str = "age,city,pay\n30,Oslo,1\n,\"São Paulo, SP\",2\n40,Oslo,NA\n20,\"a \"\"b\"\"\nc\",4\n";

const PEOPLE_FIELDS: &str = r#"{"file": "FOLDER/people.csv", "missing_values": ["NA"], "fields": [
    {"name": "dense", "columns": ["age", "pay"], "missing": "mean", "indicator": true},
    {"name": "city", "columns": "city", "categories": true}]}"#;

#[test]
fn fields_have_fills_indicators_and_categories() {
    let mut people = opened(&[("people.csv", PEOPLE)], PEOPLE_FIELDS, None).unwrap();
    assert_eq!(
        people.fields(),
        [Field::new("dense", DType::Float32, [4]), Field::new("city", DType::Int64, [])]
    );
    let batch = testing::batch(&mut people, &[1, 2, 3]).unwrap();
    // The mean of 30, 40 and 20, and of 1, 2 and 4.
    let pay = (7.0f64 / 3.0) as f32;
    assert_eq!(batch[0].values::<f32>(), [30.0, 1.0, 2.0, 0.0, 40.0, 0.0, pay, 1.0, 20.0, 0.0, 4.0, 0.0]);
    // Oslo, São Paulo and a "b" with a line in it, in alphabetical order.
    assert_eq!(batch[1].values::<i64>(), [2, 1, 3]);
}

#[test]
fn test_samples_have_the_means_and_numbers_of_the_training_samples_and_unknown_texts_are_0() {
    let state = opened(&[("people.csv", PEOPLE)], PEOPLE_FIELDS, None).unwrap().state().unwrap().unwrap();
    let others = "pay,age,city\n,,Bergen\n9,,Oslo\n";
    let mut test = opened(&[("people.csv", others)], PEOPLE_FIELDS, Some(&state)).unwrap();
    let batch = testing::batch(&mut test, &[0, 1]).unwrap();
    assert_eq!(batch[0].values::<f32>(), [30.0, 1.0, (7.0f64 / 3.0) as f32, 1.0, 30.0, 1.0, 9.0, 0.0]);
    assert_eq!(batch[1].values::<i64>(), [0, 1]);
    let more = PEOPLE_FIELDS.replace(r#""city", "categories""#, r#"["city", "pay"], "categories""#);
    let error = opened(&[("people.csv", others)], &more, Some(&state)).err().unwrap().to_string();
    assert!(error.starts_with("field `city` has 2 columns that settle something"), "{error}");
}

#[test]
fn rare_texts_are_unknown_ones() {
    let config = r#"{"file": "FOLDER/a.csv", "fields": [
        {"name": "x", "columns": ["x"], "categories": true, "min_count": 2}]}"#;
    let mut rare = opened(&[("a.csv", "x\nb\na\nb\nc\nc\n")], config, None).unwrap();
    let batch = testing::batch(&mut rare, &[0, 1, 2, 3, 4]).unwrap();
    assert_eq!(batch[0].values::<i64>(), [1, 0, 1, 2, 2]);
}

#[test]
fn several_files_are_one_table_also_with_columns_in_another_order() {
    let files = [("b.csv", "y,x\r\n4,3\r\n"), ("a.csv", "x,y\n1,2\n"), ("c.txt", "")];
    let config = r#"{"file": ["FOLDER/*.csv", "FOLDER/a.csv"], "features": ["x"], "target": "y"}"#;
    let mut both = opened(&files, config, None).unwrap();
    let batch = testing::batch(&mut both, &[0, 1, 2]).unwrap();
    assert_eq!(batch[0].values::<f32>(), [1.0, 3.0, 1.0]);
    assert_eq!(batch[1].values::<f32>(), [2.0, 4.0, 2.0]);
    let wrong = [("a.csv", "x,y\n1,2\n"), ("b.csv", "x,y\n1,2\n\n3,z\n")];
    let error = opened(&wrong, config, None).err().unwrap().to_string();
    assert!(error.starts_with("`b.csv`, line 4, column `y`: `z` is not a number\nhint: "), "{error}");
}

#[test]
fn contradicting_fields_are_refused() {
    let error = |field: &str| {
        let config = format!(r#"{{"file": "FOLDER/a.csv", "fields": [{field}]}}"#);
        opened(&[("a.csv", "x,y\n1,2\n,3\n")], &config, None).err().unwrap().to_string()
    };
    assert_eq!(
        error(r#"{"name": "x", "columns": "x", "categories": true, "missing": 0}"#),
        "field `x`: `missing` and `indicator` are for numbers: an empty text is a text like others\nhint: leave them out"
    );
    assert_eq!(
        error(r#"{"name": "x", "columns": "x", "indicator": true}"#),
        "field `x`: `indicator` needs `missing`: what stands where there is no value\n\
         hint: add `missing = 0` or `missing = \"mean\"`"
    );
    assert_eq!(
        error(r#"{"name": "x", "columns": "x", "dtype": "int64", "missing": "mean"}"#),
        "field `x`: `missing` = \"mean\" is a fraction, and the field is int64\nhint: give a number, or take float32"
    );
    assert_eq!(
        error(r#"{"name": "x", "columns": "x", "missing": "median"}"#),
        "field `x`: `missing` = \"median\" is neither a number nor \"mean\"\n\
         hint: write `missing = 0` or `missing = \"mean\"`"
    );
    assert_eq!(
        error(r#"{"name": "x", "columns": "x", "dtype": "int64", "missing": 0.5}"#),
        "field `x`: `missing` = 0.5 is not a number of the field's dtype\n\
         hint: give a whole number, or take float32"
    );
    assert_eq!(
        error(r#"{"name": "x", "columns": ["x", "x"]}"#),
        "field `x` names column `x` twice\nhint: leave one of them out"
    );
    let empty = error(r#"{"name": "x", "columns": "x"}"#);
    assert!(empty.starts_with("`a.csv`, line 3, column `x`: the cell is empty\nhint: "), "{empty}");
    assert!(error("").starts_with("`fields` is an empty list"));
}

#[test]
fn a_quote_that_is_not_closed_does_not_take_the_memory() {
    let text = format!("x\n1\n\"{}\n", "0123456789\n".repeat(200_000));
    let error = opened(&[("a.csv", &text)], r#"{"file": "FOLDER/a.csv"}"#, None).err().unwrap().to_string();
    assert_eq!(
        error,
        "`a.csv`, line 3: the row that begins there has more than 1048576 bytes\nhint: is it text, and is every quote closed?"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The same whether rows stay in memory or are read again.
    #[test]
    fn rows_on_the_disk_are_those_in_memory(
        rows in prop::collection::vec((prop::option::of(-1000i32..1000), "[a-c]{0,2}"), 1..40),
        indices in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let line = |(x, text): &(Option<i32>, String)| format!("{},{text}\n", x.map_or(String::new(), |x| x.to_string()));
        let text: String = std::iter::once("x,t\n".into()).chain(rows.iter().map(line)).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, text).unwrap();
        let indices: Vec<u64> = indices.iter().map(|index| index.index(rows.len()) as u64).collect();
        let [memory, disk] = [64, 0].map(|in_memory_mb| {
            let config = serde_json::json!({ "file": path, "in_memory_mb": in_memory_mb, "fields": [
                { "name": "x", "columns": ["x"], "missing": -1, "indicator": true },
                { "name": "t", "columns": ["t"], "categories": true, "min_count": 2 },
            ] });
            let mut csv: Csv = testing::open(&config.to_string()).unwrap();
            (testing::batch(&mut csv, &indices).unwrap(), csv.state().unwrap())
        });
        prop_assert_eq!(&memory, &disk);
        let mut texts: Vec<&str> = rows.iter().map(|(_, text)| text.as_str()).collect();
        texts.sort_unstable();
        let kept: Vec<&str> = texts.chunk_by(|a, b| a == b).filter(|same| same.len() > 1).map(|same| same[0]).collect();
        for (n, &index) in indices.iter().enumerate() {
            let (x, text) = &rows[index as usize];
            let id = kept.iter().position(|known| known == text).map_or(0, |at| at as i64 + 1);
            prop_assert_eq!(memory.0[1].values::<i64>()[n], id);
            let missing = f32::from(u8::from(x.is_none()));
            prop_assert_eq!(&memory.0[0].values::<f32>()[2 * n..2 * n + 2], &[x.unwrap_or(-1) as f32, missing]);
        }
    }
}
