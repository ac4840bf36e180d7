//! Rewrites a filter so that it makes its decisions in fewer instructions.
//!
//! The kernel checks, translates and tries a filter at every load, so at every launch and every exec: what counts
//! is its length. libseccomp compares with every number of a call that a profile names, for each architecture.
//! Neighbouring numbers mostly have the same answer; a search for the range takes a tenth.
//!
//!   libseccomp's program ─ evaluated for each architecture and number that it
//!   tells apart ─► ranges with equal outcomes ─ searched ─► program
//!
//! Whatever depends on arguments stays as it is. This module knows nothing of profiles: only what the program says
//! counts. A program that it does not fully understand is left as it is.

use std::collections::{BTreeSet, HashMap};

use super::bpf::{self, ARCHITECTURE, NUMBER, Op, Test};
use super::graph::{Graph, Id, Node};

/// The bytes of `struct seccomp_data`.
const DATA: u32 = 64;
/// The most consecutive tests of arguments: the evaluation recurses.
const DEEPEST: usize = 512;

/// `program`, or a shorter one that gives every call the same answer.
pub fn shorter(program: Vec<u8>) -> Vec<u8> {
    let rewritten = bpf::read(&program).and_then(|ops| rewrite(&ops)).map(|ops| bpf::write(&ops));
    rewritten.filter(|rewritten| rewritten.len() < program.len()).unwrap_or(program)
}

/// A program of ranges with the answers of `program`; `None` if `program` does more with architecture and number
/// than compare their size.
pub fn rewrite(program: &[Op]) -> Option<Vec<Op>> {
    let told_apart = ToldApart::by(program)?;
    let mut graph = Graph::default();
    let mut architectures = Vec::new();
    for &architecture in &told_apart.architectures {
        let mut numbers = Vec::new();
        for &number in &told_apart.numbers {
            let mut call = Call { program, architecture, number, graph: &mut graph, known: HashMap::new() };
            let outcome = call.outcome(0, Some(0), 0)?;
            push_unless_same(&mut numbers, number, outcome);
        }
        let outcome = graph.choose(NUMBER, &numbers);
        push_unless_same(&mut architectures, architecture, outcome);
    }
    let root = graph.choose(ARCHITECTURE, &architectures);
    Some(graph.instructions(root))
}

fn push_unless_same(segments: &mut Vec<(u32, Id)>, start: u32, outcome: Id) {
    if segments.last().is_none_or(|(_, last)| *last != outcome) {
        segments.push((start, outcome));
    }
}

/// The starts of the ranges whose members no comparison of a program tells apart.
#[derive(Debug)]
struct ToldApart {
    architectures: BTreeSet<u32>,
    numbers: BTreeSet<u32>,
}

impl ToldApart {
    /// Follows what A can be at each instruction; jumps only go forwards. `None` for a program that is not whole,
    /// or that tests single bits of architecture or number.
    fn by(program: &[Op]) -> Option<ToldApart> {
        const IS_ARCHITECTURE: u8 = 1;
        const IS_NUMBER: u8 = 2;
        const IS_OTHER: u8 = 4;
        let mut found = ToldApart { architectures: BTreeSet::from([0]), numbers: BTreeSet::from([0]) };
        let mut can_be = vec![0; program.len()];
        *can_be.first_mut()? = IS_OTHER;
        for (at, op) in program.iter().enumerate() {
            let a = can_be[at];
            if a == 0 {
                continue; // never reached
            }
            let mut reaches = |further: u32, a: u8| -> Option<()> {
                let to = (at + 1).checked_add(usize::try_from(further).ok()?)?;
                *can_be.get_mut(to)? |= a;
                Some(())
            };
            let bits_matter = matches!(op, Op::And(_) | Op::If(Test::AnyBit, ..));
            if bits_matter && a & (IS_ARCHITECTURE | IS_NUMBER) != 0 {
                return None;
            }
            match *op {
                Op::Load(ARCHITECTURE) => reaches(0, IS_ARCHITECTURE)?,
                Op::Load(NUMBER) => reaches(0, IS_NUMBER)?,
                Op::Load(offset) if offset % 4 == 0 && offset < DATA => reaches(0, IS_OTHER)?,
                Op::Load(_) => return None,
                Op::And(_) => reaches(0, a)?,
                Op::Jump(further) => reaches(further, a)?,
                Op::Return(_) => {}
                Op::If(_, constant, yes, no) => {
                    reaches(yes.into(), a)?;
                    reaches(no.into(), a)?;
                    // The constant gets its own range, between those below and above it.
                    let starts = [Some(constant), constant.checked_add(1)];
                    if a & IS_ARCHITECTURE != 0 {
                        found.architectures.extend(starts.into_iter().flatten());
                    }
                    if a & IS_NUMBER != 0 {
                        found.numbers.extend(starts.into_iter().flatten());
                    }
                }
            }
        }
        Some(found)
    }
}

/// A program as it runs for one number on one architecture.
struct Call<'a> {
    program: &'a [Op],
    architecture: u32,
    number: u32,
    graph: &'a mut Graph,
    /// The outcome from each instruction on when A is not known.
    known: HashMap<usize, Id>,
}

impl Call<'_> {
    /// The outcome of the program from instruction `at` on; `a` is A if that is known. The outcome is an answer, or
    /// the tests of arguments that are left.
    ///
    /// Wherever A is not known, it is the same as in the program: the steps that set it are kept, and only known
    /// steps are left out.
    fn outcome(&mut self, at: usize, a: Option<u32>, depth: usize) -> Option<Id> {
        if a.is_none()
            && let Some(id) = self.known.get(&at)
        {
            return Some(*id);
        }
        if depth == DEEPEST {
            return None;
        }
        let id = self.follow(at, a, depth + 1)?;
        if a.is_none() {
            self.known.insert(at, id);
        }
        Some(id)
    }

    fn follow(&mut self, mut at: usize, mut a: Option<u32>, depth: usize) -> Option<Id> {
        loop {
            let next = at + 1;
            at = match (*self.program.get(at)?, a) {
                (Op::Return(answer), _) => return Some(self.graph.add(Node::Return(answer))),
                (Op::Jump(further), _) => next + further as usize,
                (Op::If(test, constant, yes, no), Some(value)) => {
                    next + usize::from(if test.holds(value, constant) { yes } else { no })
                }
                (Op::If(test, constant, yes, no), None) => {
                    let yes = self.outcome(next + usize::from(yes), None, depth)?;
                    let no = self.outcome(next + usize::from(no), None, depth)?;
                    return Some(self.graph.add(Node::If(test, constant, yes, no)));
                }
                (Op::Load(ARCHITECTURE), _) => {
                    a = Some(self.architecture);
                    next
                }
                (Op::Load(NUMBER), _) => {
                    a = Some(self.number);
                    next
                }
                (Op::Load(offset), _) => {
                    let then = self.outcome(next, None, depth)?;
                    return Some(self.graph.add(Node::Load(offset, then)));
                }
                (Op::And(bits), Some(value)) => {
                    a = Some(value & bits);
                    next
                }
                // libseccomp masks the upper half of a value in this way.
                (Op::And(0), None) => {
                    a = Some(0);
                    next
                }
                (Op::And(bits), None) => {
                    let then = self.outcome(next, None, depth)?;
                    return Some(self.graph.add(Node::And(bits, then)));
                }
            };
        }
    }
}
