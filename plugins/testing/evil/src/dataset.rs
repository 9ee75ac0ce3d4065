//! Ten samples in two fields, unless told otherwise.

use super::exports::pstrain::plugin::dataset::{Field, Guest, Info, Purpose};
use super::pstrain::plugin::output::emit;
use super::pstrain::plugin::types::Dtype;
use super::{Evil, configure, count_call, sin, sins};

const DTYPES: [(Dtype, &str, usize); 10] = [
    (Dtype::Boolean, "boolean", 1),
    (Dtype::Uint8, "uint8", 1),
    (Dtype::Int8, "int8", 1),
    (Dtype::Int16, "int16", 2),
    (Dtype::Int32, "int32", 4),
    (Dtype::Int64, "int64", 8),
    (Dtype::Float16, "float16", 2),
    (Dtype::Bfloat16, "bfloat16", 2),
    (Dtype::Float32, "float32", 4),
    (Dtype::Float64, "float64", 8),
];

fn field(name: &str, dtype: Dtype, shape: &[u64]) -> Field {
    Field { name: name.into(), dtype, shape: shape.into() }
}

/// Two bytes and a number, each equal to the index.
fn emit_honestly(indices: &[u64]) {
    let n = indices.len() as u64;
    let x: Vec<u8> = indices.iter().flat_map(|&index| [index as u8; 2]).collect();
    let y: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
    emit(0, Dtype::Uint8, &[n, 2], &x);
    emit(1, Dtype::Int64, &[n], &y);
}

impl Guest for Evil {
    fn open(config: String, state: Option<Vec<u8>>) -> Result<Info, String> {
        let (sin, argument) = configure(&config);
        if let Some(sin) = sin.strip_prefix("open-") {
            sins::commit(sin, &argument)?;
        }
        let mut info = Info {
            samples: 10,
            fields: vec![field("x", Dtype::Uint8, &[2]), field("y", Dtype::Int64, &[])],
            state: None,
        };
        match &*sin {
            "empty" => info.samples = 0,
            "endless-data" => info.samples = u64::MAX,
            "no-fields" => info.fields.clear(),
            "same-names" => info.fields[1].name = "x".into(),
            "odd-name" => info.fields[1].name = "\u{1b}[31mred".into(),
            "huge-sample" => info.fields[0].shape = vec![1 << 40, 1 << 40],
            "flat-sample" => info.fields[0].shape = vec![0],
            // One value of each dtype, elements counted in bytes 0, 1, 2 ...
            "dtypes" => {
                info.fields = DTYPES.iter().map(|(dtype, name, _)| field(name, *dtype, &[2, 3])).collect();
            }
            // For measuring: a batch of pictures from memory, or of one big field.
            "pictures" => {
                info.fields = vec![field("x", Dtype::Uint8, &[28, 28]), field("y", Dtype::Int64, &[])]
            }
            "big" => info.fields = vec![field("x", Dtype::Uint8, &[argument.parse().unwrap_or(1)])],
            // Settles so many bytes, and has as many samples when it is opened with them.
            "settle" => match state {
                None => info.state = Some(vec![7; argument.parse().unwrap_or(0)]),
                Some(state) => {
                    info.samples = state.iter().filter(|&&byte| byte == 7).count() as u64;
                    info.state = Some(b"another".into());
                }
            },
            "emit-early" => emit_honestly(&[0]),
            _ => {}
        }
        Ok(info)
    }

    fn batch(indices: Vec<u64>, purpose: Purpose) -> Result<(), String> {
        let (sin, argument) = sin();
        let calls = count_call();
        let n = indices.len() as u64;
        match &*sin {
            "once" if calls > 1 => {}
            "once" => {
                let (sin, argument) = argument.split_once(' ').unwrap_or((&argument, ""));
                sins::commit(sin, argument)?;
            }
            "wrong-shape" => emit(0, Dtype::Uint8, &[n, 3], &vec![0; 3 * n as usize]),
            "wrong-batch" => emit(0, Dtype::Uint8, &[n + 1, 2], &vec![0; 2 * (n as usize + 1)]),
            "wrong-dtype" => emit(0, Dtype::Int8, &[n, 2], &vec![0; 2 * n as usize]),
            "wrong-bytes" => emit(0, Dtype::Uint8, &[n, 2], &[0; 3]),
            "wrong-field" => emit(7, Dtype::Uint8, &[n, 2], &vec![0; 2 * n as usize]),
            "endless-shape" => emit(0, Dtype::Uint8, &vec![1; 100_000], &vec![0; 2 * n as usize]),
            "twice" => {
                emit_honestly(&indices);
                emit_honestly(&indices);
            }
            "half" => {
                emit(0, Dtype::Uint8, &[n, 2], &vec![0; 2 * n as usize]);
                return Ok(());
            }
            "dtypes" => {
                for (at, (dtype, _, size)) in DTYPES.iter().enumerate() {
                    let bytes =
                        (0..n as usize * 6 * size).map(|byte| if at == 0 { byte % 2 } else { byte } as u8);
                    emit(at as u32, *dtype, &[n, 2, 3], &bytes.collect::<Vec<u8>>());
                }
                return Ok(());
            }
            // Gives what it is told instead of indices.
            "purpose" => {
                let told = [u64::from(purpose.train), purpose.epoch.into(), purpose.seed];
                emit_honestly(&told[..indices.len()]);
                return Ok(());
            }
            "bad-boolean" => emit(0, Dtype::Uint8, &[n, 2], &[]),
            "pictures" => {
                static PICTURES: [u8; 512 * 784] = [7; 512 * 784];
                let labels = [0; 8 * 512];
                emit(0, Dtype::Uint8, &[n, 28, 28], &PICTURES[..n as usize * 784]);
                emit(1, Dtype::Int64, &[n], &labels[..n as usize * 8]);
                return Ok(());
            }
            "big" => {
                let size: u64 = argument.parse().unwrap_or(1);
                emit(0, Dtype::Uint8, &[n, size], &vec![1; (n * size) as usize]);
                return Ok(());
            }
            sin => sins::commit(sin, &argument)?,
        }
        emit_honestly(&indices);
        Ok(())
    }
}
