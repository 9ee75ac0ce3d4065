use super::*;
use proptest::prelude::*;
use pstrain_plugin::testing;
use std::io::Write;
use zip::write::SimpleFileOptions;

fn npy(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), elements].concat()
}

fn npz(members: &[(&str, &[u8])], method: zip::CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn opened(files: &[(&str, &[u8])], config: &str) -> Result<Npy, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let root = folder.path().display().to_string();
    let opened: Result<Npy> = testing::open(&config.replace("FOLDER", &root));
    opened.map_err(|error| format!("{error:#}").replace(&format!("{root}/"), ""))
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn arrays_are_fields_by_their_names() {
    let x = npy("'<f4'", "False", "(3, 2)", &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let y = npy("'>i8'", "False", "(3,)", &[7i64, 8, 9].map(i64::to_be_bytes).concat());
    let config = r#"{"file": ["FOLDER/x.npy", "FOLDER/y.npy"]}"#;
    let mut plain = opened(&[("x.npy", &x), ("y.npy", &y)], config).unwrap();
    assert_eq!(plain.fields(), [Field::new("x", DType::Float32, [2]), Field::new("y", DType::Int64, [])]);
    let expected = testing::batch(&mut plain, &[2, 0, 2]).unwrap();
    assert_eq!(expected[0].values::<f32>(), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
    assert_eq!(expected[1].values::<i64>(), [9, 7, 9]);
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        let archive = npz(&[("y.npy", &y), ("x.npy", &x)], method);
        for room in [64, 0] {
            let config =
                format!(r#"{{"file": "FOLDER/a.npz", "fields": ["x", "y"], "in_memory_mb": {room}}}"#);
            let mut packed = opened(&[("a.npz", &archive)], &config).unwrap();
            assert_eq!(testing::batch(&mut packed, &[2, 0, 2]).unwrap(), expected);
        }
    }
}

#[test]
fn what_is_no_tensor_is_told_with_what_to_save_instead() {
    let error = |bytes: &[u8]| opened(&[("x.npy", bytes)], r#"{"file": "FOLDER/x.npy"}"#).err().unwrap();
    assert_eq!(
        error(&npy("'<f4'", "True", "(2, 2)", &[0; 16])),
        "`x.npy`: its columns lie one after the other (fortran_order)\nhint: save numpy.ascontiguousarray(x)"
    );
    assert_eq!(
        error(&npy("'|O'", "False", "(2,)", &[0; 16])),
        "`x.npy`: it has objects of Python in it, which are not read\nhint: save numbers: x.astype(\"float32\")"
    );
    assert!(
        error(&npy("'<u4'", "False", "(2,)", &[0; 8]))
            .starts_with("`x.npy`: its elements are `<u4`, which tensors")
    );
    assert!(
        error(&npy("[('a', '<f4')]", "False", "(2,)", &[0; 8])).starts_with("`x.npy`: it has several values")
    );
    assert_eq!(
        error(&npy("'<f4'", "False", "(2, 3)", &[0; 20])),
        "`x.npy`: it is cut: [2, 3] elements of float32 are 24 bytes, and it has 20\nhint: copy it here once more"
    );
    assert_eq!(
        error(&npy("'<f4'", "False", "(18446744073709551615, 3)", &[0; 20])),
        "`x.npy`: it has [18446744073709551615, 3] elements, which is too many"
    );
    assert_eq!(
        error(&npy("'<f4'", "False", "()", &[0; 4])),
        "`x.npy`: it is a single number: the first dimension is to count the samples\nhint: save x.reshape(1)"
    );
    let text = error(b"hello, world");
    assert!(text.starts_with("`x.npy`: it is not an array of NumPy: it begins with"), "{text}");
    assert!(text.ends_with("\nhint: numpy.save(\"x.npy\", x) writes one"), "{text}");
    let pair: [(&str, &[u8]); 2] = [
        ("x.npy", &npy("'|u1'", "False", "(2,)", &[0; 2])),
        ("y.npy", &npy("'|u1'", "False", "(3,)", &[0; 3])),
    ];
    let told = opened(&pair, r#"{"file": ["FOLDER/x.npy", "FOLDER/y.npy"]}"#).err().unwrap();
    assert_eq!(
        told,
        "`x.npy` has 2 samples, and `y.npy` has 3\nhint: save as many of each; `fields` leaves arrays out"
    );
    let told = |fields: &str| {
        let config = format!(r#"{{"file": ["FOLDER/x.npy", "FOLDER/y.npy"], "fields": {fields}}}"#);
        opened(&pair, &config).err().unwrap()
    };
    assert_eq!(
        told(r#"["x", "z"]"#),
        "there is no array `z`; there are `x`, `y`\nhint: `fields` names some of them"
    );
    assert_eq!(told(r#"["x", "x"]"#), "`fields` names `x` twice\nhint: leave one of them out");
    let none = opened(&pair, r#"{"file": "FOLDER/x.npy", "fields": []}"#).err().unwrap();
    assert!(none.starts_with("`x.npy` has no arrays\nhint: "), "{none}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are, they are read or refused: those of good files with some that are wrong, or cut.
    #[test]
    fn any_file_is_read_or_refused(
        dims in prop::collection::vec(0u64..4, 0..4),
        descr in prop::sample::select(vec!["'|b1'", "'<i2'", "'>f8'", "'<c8'", "'<f4'"]),
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
        archive in prop::option::of(any::<bool>()),
    ) {
        let shape: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
        let elements = vec![1; dims.iter().product::<u64>() as usize * 8];
        let mut bytes = npy(descr, "False", &format!("({shape})"), &elements);
        if let Some(packed) = archive {
            let method = if packed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
            bytes = npz(&[("x.npy", &bytes)], method);
        }
        for (at, byte) in spoilt {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match opened(&[("x", &bytes)], r#"{"file": "FOLDER/x"}"#) {
            Ok(mut npy) if npy.len() > 0 => {
                let last = npy.len() - 1;
                let _ = testing::batch(&mut npy, &[last, 0]);
            }
            Ok(_) => {}
            Err(error) => prop_assert!(!error.is_empty()),
        }
    }
}
