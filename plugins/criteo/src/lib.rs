//! Criteo's logs of clicks: tab-separated lines of a label, 13 whole numbers and 26 categories in hexadecimal digits, any of
//! which but the label may be empty. Fields, as the reference implementation of DLRM has them: `dense` float32 [13], the
//! logarithm of a number and one; `categories` int64 [26], a category modulo its column's rows; `click` float32 [1].

use plugin_rows::{Form, Record, Records, Room, Rows, cut};
use pstrain_plugin::prelude::*;

const DENSE: usize = 13;
const CATEGORIES: usize = 26;
const CELLS: usize = 1 + DENSE + CATEGORIES;
const FORM: Form = Form { delimiter: b'\t', quotes: false };
/// How much is read at once while all lines are gone through.
const BUFFER: usize = 64 << 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// One or several, of which the last part may have `*` and `?`.
    file: OneOrMore<String>,
    /// One number for all columns, or one for each.
    rows: OneOrMore<u32>,
    #[serde(default = "in_memory_mb")]
    in_memory_mb: usize,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted one value or a list of them")]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

fn in_memory_mb() -> usize {
    64
}

/// A line as numbers.
#[derive(Clone, Copy)]
struct Line {
    click: f32,
    dense: [f32; DENSE],
    categories: [u32; CATEGORIES],
}

struct Criteo {
    rows: Rows,
    modulus: [u32; CATEGORIES],
    /// All of them, or those of the batch.
    lines: Vec<Line>,
    in_memory: bool,
}

impl Criteo {
    fn line(record: &Record, modulus: &[u32; CATEGORIES]) -> Result<Line, String> {
        if record.cells() != CELLS {
            return Err(format!(
                "it has {} cells, and {CELLS} are wanted, with tabs between them",
                record.cells()
            ));
        }
        let text = |at: usize| {
            std::str::from_utf8(record.cell(at)).map_err(|_| format!("column {at}: it is not UTF-8 text"))
        };
        let click = match text(0)? {
            "0" => 0.0,
            "1" => 1.0,
            other => return Err(format!("column 0: the label `{}` is neither 0 nor 1", cut(other))),
        };
        let mut line = Line { click, dense: [0.0; DENSE], categories: [0; CATEGORIES] };
        for (at, value) in (1..).zip(&mut line.dense) {
            *value = match text(at)? {
                "" => 0.0,
                number => {
                    let whole: i64 = number
                        .parse()
                        .map_err(|_| format!("column {at}: `{}` is not a whole number", cut(number)))?;
                    // A few counts are negative, and have no logarithm.
                    (whole.max(0) as f64).ln_1p() as f32
                }
            };
        }
        for (nth, value) in line.categories.iter_mut().enumerate() {
            let at = 1 + DENSE + nth;
            *value = match text(at)? {
                "" => 0,
                digits => {
                    let wrong = || {
                        format!(
                            "column {at}: `{}` is not a number of up to 16 hexadecimal digits",
                            cut(digits)
                        )
                    };
                    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                    let number = u64::from_str_radix(digits, 16).ok().filter(|_| plain).ok_or_else(wrong)?;
                    (number % u64::from(modulus[nth])) as u32
                }
            };
        }
        Ok(line)
    }

    /// Goes through a file once, so that every line is one that can be read.
    /// `before`: bytes of the files before it.
    fn add(&mut self, name: &str, room: &Room, before: u64) -> Result<u64> {
        let mut records = Records::open(name, FORM, BUFFER)?;
        let mut record = Record::default();
        self.rows.begin(name, CELLS, Vec::new());
        while records.next(&mut record)? {
            let line = Criteo::line(&record, &self.modulus)
                .map_err(|what| anyhow!("`{name}`, line {}, {what}", records.line(&record)))?;
            self.rows.add(record.start);
            if self.in_memory {
                self.lines.push(line);
                self.make_room(room, before + records.offset());
            }
        }
        Ok(records.offset())
    }

    /// Behind the lines 1,024, 2,048 and so on: keeps the lines if all will fit.
    fn make_room(&mut self, room: &Room, read: u64) {
        let lines = self.lines.len();
        if lines < 1024 || !lines.is_power_of_two() {
            return;
        }
        match room.foretell(size_of_val(self.lines.as_slice()) as u64, read) {
            // A little more, since lines are not all alike. Where there is no memory, the lines themselves will say so.
            Some(all) => {
                drop(self.lines.try_reserve_exact(all as usize / size_of::<Line>() * 51 / 50 - lines))
            }
            None => {
                self.in_memory = false;
                self.lines = Vec::new();
            }
        }
    }
}

impl Dataset for Criteo {
    type Config = Config;

    fn open(Config { file, rows, in_memory_mb }: Config) -> Result<Self> {
        let modulus = match rows {
            OneOrMore::One(rows) => [rows; CATEGORIES],
            OneOrMore::More(rows) => {
                let count = rows.len();
                rows.try_into().map_err(|_| {
                    anyhow!("`rows` has {count} numbers\nhint: give one for all columns, or {CATEGORIES}, one for each")
                })?
            }
        };
        ensure!(!modulus.contains(&0), "`rows` = 0: a table has at least one row");
        let names = data::find_all(&match file {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        })?;
        let in_memory = in_memory_mb > 0;
        let mut criteo = Criteo { rows: Rows::new(FORM), modulus, lines: Vec::new(), in_memory };
        let room = Room::new(&names, (in_memory_mb as u64) << 20);
        let mut before = 0;
        for name in &names {
            before += criteo.add(name, &room, before)?;
        }
        ensure!(criteo.len() > 0, "`{}` has no lines", names.join("`, `"));
        Ok(criteo)
    }

    fn len(&self) -> u64 {
        self.rows.count()
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("dense", DType::Float32, [DENSE as u64]),
            Field::new("categories", DType::Int64, [CATEGORIES as u64]),
            Field::new("click", DType::Float32, [1]),
        ]
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let picked: Vec<Line> = match self.in_memory {
            true => batch.indices().iter().map(|&index| self.lines[index as usize]).collect(),
            false => {
                let mut read = |&index: &u64| {
                    let line = Criteo::line(self.rows.read(index)?.0, &self.modulus);
                    line.map_err(|what| anyhow!("{}, {what}: the file has changed", self.rows.call(index)))
                };
                batch.indices().iter().map(&mut read).collect::<Result<_>>()?
            }
        };
        let dense: Vec<f32> = picked.iter().flat_map(|line| line.dense).collect();
        let categories: Vec<i64> = picked.iter().flat_map(|line| line.categories.map(i64::from)).collect();
        let clicks: Vec<f32> = picked.iter().map(|line| line.click).collect();
        batch.emit(0, &dense)?;
        batch.emit(1, &categories)?;
        batch.emit(2, &clicks)
    }
}

export_dataset!(Criteo);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use pstrain_plugin::testing;

    fn opened(text: &[u8], more: &str) -> Result<Criteo, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("day");
        std::fs::write(&path, text).unwrap();
        let opened = testing::open(&format!(r#"{{"file": "{}", {more}}}"#, path.display()));
        opened.map_err(|error| format!("{error:#}").replace(&path.display().to_string(), "day"))
    }

    fn line(label: &str, dense: &str, category: &str) -> String {
        let cells = [vec![label; 1], vec![dense; DENSE], vec![category; CATEGORIES]].concat();
        cells.join("\t") + "\n"
    }

    // As data_utils.py of facebookresearch/dlrm: int(x, 16) % rows, and log(x + 1) of what is not below 0.
    #[test]
    fn numbers_are_those_of_dlrm() {
        let text = line("1", "9", "68fd1e64") + &line("0", "-3", "") + &line("0", "", "ff");
        let mut criteo = opened(text.as_bytes(), r#""rows": 1000"#).unwrap();
        let batch = testing::batch(&mut criteo, &[0, 1, 2]).unwrap();
        let dense = batch[0].values::<f32>();
        assert_eq!((dense[0], dense[13], dense[26]), (10f32.ln(), 0.0, 0.0));
        let categories = batch[1].values::<i64>();
        // 0x68fd1e64 is 1761418852.
        assert_eq!((categories[0], categories[26], categories[52]), (852, 0, 255));
        assert_eq!(batch[2].values::<f32>(), [1.0, 0.0, 0.0]);
        assert_eq!((batch[0].shape.as_slice(), batch[2].shape.as_slice()), (&[3, 13][..], &[3, 1][..]));
    }

    #[test]
    fn each_column_has_rows_of_its_own() {
        let rows: Vec<u32> = (1..=26).collect();
        let text = line("0", "1", "63");
        let mut criteo = opened(text.as_bytes(), &format!(r#""rows": {rows:?}"#)).unwrap();
        let categories = testing::batch(&mut criteo, &[0]).unwrap()[1].values::<i64>();
        assert_eq!(categories, (1..=26).map(|rows| 99 % rows).collect::<Vec<i64>>());
    }

    #[test]
    fn a_wrong_line_is_named() {
        let good = line("0", "1", "a");
        let error = |line: &str| opened((good.clone() + line).as_bytes(), r#""rows": 10"#).err().unwrap();
        assert_eq!(
            error("0\t1\n"),
            "`day`, line 2, it has 2 cells, and 40 are wanted, with tabs between them"
        );
        assert_eq!(error(&line("2", "1", "a")), "`day`, line 2, column 0: the label `2` is neither 0 nor 1");
        assert_eq!(error(&line("1", "1.5", "a")), "`day`, line 2, column 1: `1.5` is not a whole number");
        assert_eq!(
            error(&line("1", "1", "+f")),
            "`day`, line 2, column 14: `+f` is not a number of up to 16 hexadecimal digits"
        );
        let rows = |rows: &str| opened(good.as_bytes(), &format!(r#""rows": {rows}"#)).err().unwrap();
        assert_eq!(
            rows("[1, 2]"),
            "`rows` has 2 numbers\nhint: give one for all columns, or 26, one for each"
        );
        assert_eq!(rows("0"), "`rows` = 0: a table has at least one row");
        assert_eq!(opened(b"", r#""rows": 1"#).err().unwrap(), "`day` has no lines");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the bytes are, they are read or refused, and the same on the disk as in memory.
        #[test]
        fn any_file_is_read_or_refused(
            lines in prop::collection::vec(("[01]?", "-?[0-9]{0,20}", "[0-9a-g]{0,17}"), 1..5),
            at: prop::sample::Index,
            noise in prop::collection::vec(any::<u8>(), 0..3),
        ) {
            let mut text: Vec<u8> = lines.iter().flat_map(|(a, b, c)| line(a, b, c).into_bytes()).collect();
            let at = at.index(text.len());
            text.splice(at..at, noise);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("day");
            std::fs::write(&path, &text).unwrap();
            let [memory, disk] = [64, 0].map(|in_memory_mb| {
                let config = format!(r#"{{"file": "{}", "rows": 7, "in_memory_mb": {in_memory_mb}}}"#, path.display());
                let mut criteo: Criteo = testing::open(&config).ok()?;
                let last = criteo.len() - 1;
                Some(testing::batch(&mut criteo, &[last, 0]).unwrap())
            });
            prop_assert_eq!(memory, disk);
        }
    }
}
