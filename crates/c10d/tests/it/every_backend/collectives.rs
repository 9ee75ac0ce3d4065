//! Every collective, with two and four ranks, against what is known on paper.

use super::threads;
use c10d::{ProcessGroup, ReduceOp, Result};
use tch::{Kind, Tensor};

fn ranks(body: impl Fn(&ProcessGroup) -> Result<()> + Sync) {
    for size in [2, 4] {
        threads(size, &body).unwrap_or_else(|error| panic!("{size} ranks: {error}"));
    }
}

fn of(values: &[f64]) -> Tensor {
    Tensor::from_slice(values)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).expect("a vector of numbers")
}

/// 0, 1, .. of all ranks, each scaled.
fn per_rank(group: &ProcessGroup, scale: f64) -> Vec<f64> {
    (0..group.size()).map(|rank| scale * f64::from(rank)).collect()
}

#[test]
fn broadcast_gives_the_roots_tensor_to_all() {
    ranks(|group| {
        for root in 0..group.size() {
            let mut tensor = of(&[f64::from(group.rank()), 7.0]);
            group.broadcast(&mut tensor, root)?;
            assert_eq!(values(&tensor), [f64::from(root), 7.0]);
            let work = group.broadcast_async(of(&[f64::from(group.rank())]), root)?;
            assert_eq!(values(&work.wait()?), [f64::from(root)]);
        }
        Ok(())
    });
}

#[test]
fn all_reduce_knows_every_reduction() {
    ranks(|group| {
        let (rank, size) = (f64::from(group.rank()), f64::from(group.size()));
        let sum = size * (size + 1.0) / 2.0;
        let product: f64 = (1..=group.size()).map(f64::from).product();
        let expected = [
            (ReduceOp::Sum, sum),
            (ReduceOp::Avg, sum / size),
            (ReduceOp::Product, product),
            (ReduceOp::Min, 1.0),
            (ReduceOp::Max, size),
        ];
        for (op, expected) in expected {
            let mut tensor = of(&[rank + 1.0, -(rank + 1.0)]);
            group.all_reduce(&mut tensor, op)?;
            assert_eq!(values(&tensor)[0], expected, "{op}");
        }
        let ones = (1i64 << group.size()) - 1;
        for (op, expected) in [(ReduceOp::BitOr, ones), (ReduceOp::BitXor, ones), (ReduceOp::BitAnd, 0)] {
            let mut tensor = Tensor::from_slice(&[1i64 << group.rank()]);
            group.all_reduce(&mut tensor, op)?;
            assert_eq!(tensor.int64_value(&[0]), expected, "{op}");
        }
        Ok(())
    });
}

#[test]
fn all_reduce_takes_every_dtype() {
    const KINDS: [Kind; 8] = [
        Kind::Half,
        Kind::BFloat16,
        Kind::Float,
        Kind::Double,
        Kind::Int8,
        Kind::Uint8,
        Kind::Int,
        Kind::Int64,
    ];
    ranks(|group| {
        for kind in KINDS {
            let mut tensor = of(&[f64::from(group.rank()), 2.0]).to_kind(kind);
            group.all_reduce(&mut tensor, ReduceOp::Sum)?;
            assert_eq!(
                values(&tensor),
                [per_rank(group, 1.0).iter().sum(), 2.0 * f64::from(group.size())],
                "{kind:?}"
            );
        }
        let mut any = Tensor::from_slice(&[group.rank() == 0, false]);
        group.all_reduce(&mut any, ReduceOp::Max)?;
        assert_eq!(values(&any), [1.0, 0.0]);
        Ok(())
    });
}

#[test]
fn reduce_gives_the_sum_to_the_root() {
    ranks(|group| {
        let root = group.size() - 1;
        let mut tensor = of(&[f64::from(group.rank())]);
        group.reduce(&mut tensor, root, ReduceOp::Sum)?;
        let again = group.reduce_async(of(&[1.0]), root, ReduceOp::Sum)?.wait()?;
        if group.rank() == root {
            assert_eq!(values(&tensor), [per_rank(group, 1.0).iter().sum::<f64>()]);
            assert_eq!(values(&again), [f64::from(group.size())]);
        }
        Ok(())
    });
}

#[test]
fn all_gather_gives_every_input_to_all() {
    ranks(|group| {
        let input = of(&[f64::from(group.rank()), 5.0]);
        let mut outputs: Vec<Tensor> = (0..group.size()).map(|_| input.zeros_like()).collect();
        group.all_gather(&mut outputs, &input)?;
        let firsts: Vec<f64> = outputs.iter().map(|output| values(output)[0]).collect();
        assert_eq!(firsts, per_rank(group, 1.0));
        outputs.iter_mut().for_each(|output| drop(output.zero_()));
        let (outputs, _) = group.all_gather_async(outputs, input)?.wait()?;
        let firsts: Vec<f64> = outputs.iter().map(|output| values(output)[0]).collect();
        assert_eq!(firsts, per_rank(group, 1.0));
        Ok(())
    });
}

#[test]
fn all_gather_into_puts_them_one_after_the_other() {
    ranks(|group| {
        let input = of(&[f64::from(group.rank())]);
        let mut output = Tensor::zeros([i64::from(group.size())], (Kind::Double, tch::Device::Cpu));
        group.all_gather_into(&mut output, &input)?;
        assert_eq!(values(&output), per_rank(group, 1.0));
        let (output, _) = group.all_gather_into_async(output.zeros_like(), &input * 2.0)?.wait()?;
        assert_eq!(values(&output), per_rank(group, 2.0));
        Ok(())
    });
}

#[test]
fn gather_and_scatter_are_each_others_way_back() {
    ranks(|group| {
        let root = 1;
        let input = of(&[f64::from(group.rank())]);
        let many = if group.rank() == root { group.size() } else { 0 };
        let mut gathered: Vec<Tensor> = (0..many).map(|_| input.zeros_like()).collect();
        group.gather(&mut gathered, &input, root)?;
        if group.rank() == root {
            assert_eq!(gathered.iter().map(|t| values(t)[0]).collect::<Vec<_>>(), per_rank(group, 1.0));
        }
        let mut back = input.zeros_like();
        group.scatter(&mut back, &gathered, root)?;
        assert_eq!(values(&back), values(&input));
        let (gathered, input) = group.gather_async(gathered, input, root)?.wait()?;
        let (back, _) = group.scatter_async(back.zeros_like(), gathered, root)?.wait()?;
        assert_eq!(values(&back), values(&input));
        Ok(())
    });
}

#[test]
fn reduce_scatter_gives_each_rank_its_part_of_the_sum() {
    ranks(|group| {
        let (rank, size) = (f64::from(group.rank()), f64::from(group.size()));
        let inputs: Vec<Tensor> = (0..group.size()).map(|to| of(&[f64::from(to), 1.0])).collect();
        let mut output = inputs[0].zeros_like();
        group.reduce_scatter(&mut output, &inputs, ReduceOp::Sum)?;
        assert_eq!(values(&output), [rank * size, size]);
        let (output, _) = group.reduce_scatter_async(output.zeros_like(), inputs, ReduceOp::Avg)?.wait()?;
        assert_eq!(values(&output), [rank, 1.0]);

        let input = of(&per_rank(group, 1.0));
        let mut output = of(&[0.0]);
        group.reduce_scatter_tensor(&mut output, &input, ReduceOp::Sum)?;
        assert_eq!(values(&output), [rank * size]);
        let (output, _) = group.reduce_scatter_tensor_async(output, input, ReduceOp::Max)?.wait()?;
        assert_eq!(values(&output), [rank]);
        Ok(())
    });
}

#[test]
fn all_to_all_exchanges_tensors_of_different_shapes() {
    ranks(|group| {
        let rank = group.rank();
        // To each rank as many numbers as its rank plus one.
        let inputs =
            || (0..group.size()).map(|to| of(&vec![f64::from(rank); to as usize + 1])).collect::<Vec<_>>();
        let outputs = || (0..group.size()).map(|_| of(&vec![-1.0; rank as usize + 1])).collect::<Vec<_>>();
        let right = |outputs: &[Tensor]| {
            for (from, output) in outputs.iter().enumerate() {
                assert_eq!(values(output), vec![from as f64; rank as usize + 1]);
            }
        };
        let mut received = outputs();
        group.all_to_all(&mut received, &inputs())?;
        right(&received);
        let (received, _) = group.all_to_all_async(outputs(), inputs())?.wait()?;
        right(&received);
        Ok(())
    });
}

#[test]
fn all_to_all_single_sends_rows_as_the_splits_say() {
    ranks(|group| {
        let (rank, size) = (i64::from(group.rank()), i64::from(group.size()));
        let input = Tensor::full([size, 2], rank, (Kind::Int64, tch::Device::Cpu));
        let mut even = input.zeros_like();
        group.all_to_all_single(&mut even, &input, &[], &[])?;
        assert_eq!(values(&even.select(1, 0)), per_rank(group, 1.0));

        // All rows to the next rank.
        let mut to = vec![0; size as usize];
        to[((rank + 1) % size) as usize] = size;
        let mut from = vec![0; size as usize];
        let before = (rank + size - 1) % size;
        from[before as usize] = size;
        let (output, _) = group.all_to_all_single_async(input.zeros_like(), input, &from, &to)?.wait()?;
        assert_eq!(values(&output), vec![before as f64; 2 * size as usize]);
        Ok(())
    });
}

#[test]
fn coalesced_operations_do_what_the_single_ones_do() {
    ranks(|group| {
        let (rank, size) = (f64::from(group.rank()), f64::from(group.size()));
        let pair = || vec![of(&[rank, 1.0]), of(&[2.0]).view([1, 1])];
        let mut tensors = pair();
        group.all_reduce_coalesced(&mut tensors, ReduceOp::Sum)?;
        assert_eq!(values(&tensors[0]), [per_rank(group, 1.0).iter().sum(), size]);
        assert_eq!(values(&tensors[1]), [2.0 * size]);
        let tensors = group.all_reduce_coalesced_async(pair(), ReduceOp::Max)?.wait()?;
        assert_eq!(values(&tensors[0]), [size - 1.0, 1.0]);

        let inputs = || vec![of(&[rank]), of(&[10.0 * rank])];
        let gathered = || (0..2).map(|_| of(&per_rank(group, 0.0))).collect::<Vec<_>>();
        let mut outputs = gathered();
        group.all_gather_coalesced(&mut outputs, &inputs())?;
        assert_eq!(values(&outputs[1]), per_rank(group, 10.0));
        let (outputs, _) = group.all_gather_coalesced_async(gathered(), inputs())?.wait()?;
        assert_eq!(values(&outputs[0]), per_rank(group, 1.0));

        let wide = || vec![of(&per_rank(group, 1.0)), of(&per_rank(group, 2.0))];
        let mut outputs = vec![of(&[0.0]), of(&[0.0])];
        group.reduce_scatter_coalesced(&mut outputs, &wide(), ReduceOp::Sum)?;
        assert_eq!(values(&outputs[1]), [2.0 * rank * size]);
        let (outputs, _) = group.reduce_scatter_coalesced_async(outputs, wide(), ReduceOp::Max)?.wait()?;
        assert_eq!(values(&outputs[0]), [rank]);
        Ok(())
    });
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    let came = std::sync::atomic::AtomicU32::new(0);
    // Threads in any case: they share the count.
    c10d::threads(4, |group| {
        came.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        group.barrier()?;
        assert_eq!(came.load(std::sync::atomic::Ordering::SeqCst), 4);
        group.barrier_async()?.wait()
    })
    .unwrap();
}

#[test]
fn a_group_of_one_rank_works_too() {
    threads(1, |group| {
        let mut tensor = of(&[3.0]);
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
        group.barrier()?;
        assert_eq!(values(&tensor), [3.0]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn tensors_without_elements_and_without_dimensions_travel() {
    ranks(|group| {
        let mut scalar = Tensor::from(1.0f32);
        group.all_reduce(&mut scalar, ReduceOp::Sum)?;
        assert_eq!(values(&scalar), [f64::from(group.size())]);
        let mut empty = Tensor::zeros([0, 3], (Kind::Float, tch::Device::Cpu));
        group.all_reduce(&mut empty, ReduceOp::Sum)?;
        group.broadcast(&mut empty, 0)?;
        Ok(())
    });
}

/// c10d's own bookkeeping is not made for that: see `csrc/gloo.h`.
#[test]
fn many_groups_are_made_and_used_by_many_threads_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    threads(4, |group| {
                        let mut tensor = of(&[1.0]);
                        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
                        assert_eq!(values(&tensor), [4.0]);
                        group.barrier()
                    })
                    .unwrap();
                }
            });
        }
    });
}

#[test]
fn subgroups_number_their_ranks_from_zero() {
    threads(4, |group| {
        let odd = group.subgroup(&[3, 1])?;
        let even = group.subgroup(&[0, 2])?;
        let mine = odd.or(even).expect("each rank is in one of them");
        assert_eq!(mine.rank(), group.rank() / 2);
        assert_eq!(mine.world_ranks(), [group.rank() % 2, group.rank() % 2 + 2]);
        let mut tensor = of(&[f64::from(group.rank())]);
        mine.all_reduce(&mut tensor, ReduceOp::Sum)?;
        assert_eq!(values(&tensor), [if group.rank() % 2 == 0 { 2.0 } else { 4.0 }]);
        // A group of a group, which the other pair does not have to know of.
        let again = mine.subgroup(&[0, 1])?.expect("both are in it");
        assert_eq!(again.world_ranks(), mine.world_ranks());
        again.barrier()
    })
    .unwrap();
}
