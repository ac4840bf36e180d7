//! A filter as a graph: each node is a step that leads to the next ones. Equal nodes are one, so that equal ends of
//! many branches are written once.
//!
//!   rewrite ─► Graph ─ instructions ─► bpf
//!
//! The program is written from its end backwards, because all jumps go forwards: whatever a node leads to is
//! written already, and its distance is known.

use std::collections::HashMap;

use super::bpf::{Op, Test};

/// How far a comparison can jump: its distances are bytes.
const REACH: usize = u8::MAX as usize;

/// A node of one graph.
pub type Id = usize;

/// A step, and the nodes that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    Load(u32, Id),
    And(u32, Id),
    If(Test, u32, Id, Id),
    Return(u32),
}

/// All nodes, each after those it leads to.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    ids: HashMap<Node, Id>,
}

impl Graph {
    /// Adds `node` and returns its id, or the id of a node that does the same without it.
    pub fn add(&mut self, node: Node) -> Id {
        match node {
            Node::If(_, _, yes, no) if yes == no => return yes,
            // No later step uses the value.
            Node::Load(_, next) | Node::And(_, next)
                if matches!(self.nodes[next], Node::Return(_) | Node::Load(..)) =>
            {
                return next;
            }
            _ => {}
        }
        *self.ids.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }

    /// Loads the word at `offset`, and goes to the node of the last segment that begins at or below that word. The
    /// first segment begins at 0, and neighbouring segments have different nodes.
    pub fn choose(&mut self, offset: u32, segments: &[(u32, Id)]) -> Id {
        let search = self.search(segments);
        self.add(Node::Load(offset, search))
    }

    fn search(&mut self, segments: &[(u32, Id)]) -> Id {
        match *segments {
            [(_, only)] => only,
            [(_, around), (number, inside), (after, same)] if around == same && after - number == 1 => {
                self.add(Node::If(Test::Equal, number, inside, around))
            }
            _ => {
                let (below, above) = segments.split_at(segments.len() / 2);
                let (yes, no) = (self.search(above), self.search(below));
                self.add(Node::If(Test::AtLeast, above[0].0, yes, no))
            }
        }
    }

    /// The program that begins at `root`.
    pub fn instructions(&self, root: Id) -> Vec<Op> {
        let mut writer = Writer { graph: self, ops: Vec::new(), at: HashMap::new() };
        writer.place(root);
        writer.ops.reverse();
        writer.ops
    }
}

/// Writes a graph from its end backwards.
struct Writer<'a> {
    graph: &'a Graph,
    /// The last instruction of the program comes first.
    ops: Vec<Op>,
    /// Where in `ops` each node begins, or a jump to it.
    at: HashMap<Id, usize>,
}

impl Writer<'_> {
    /// Makes sure that `id` is in the program.
    fn place(&mut self, id: Id) {
        if self.at.contains_key(&id) {
            return;
        }
        let op = match self.graph.nodes[id] {
            Node::Return(answer) => Op::Return(answer),
            Node::Load(offset, next) => {
                self.place_next(next);
                Op::Load(offset)
            }
            Node::And(bits, next) => {
                self.place_next(next);
                Op::And(bits)
            }
            Node::If(test, constant, yes, no) => {
                self.place(no);
                self.place(yes);
                // A jump that brings one nearer moves the other an instruction away.
                while self.bring(yes, REACH) || self.bring(no, REACH) {}
                Op::If(test, constant, self.distance(yes) as u8, self.distance(no) as u8)
            }
        };
        self.push(id, op);
    }

    /// Makes sure that the program goes on with `id`.
    fn place_next(&mut self, id: Id) {
        self.place(id);
        self.bring(id, 0);
    }

    /// The distance to `id`, which is placed, from an instruction that is written now.
    fn distance(&self, id: Id) -> usize {
        self.ops.len() - 1 - self.at[&id]
    }

    /// Writes a jump to `id` if that is further away than `reach`. Returns whether it did.
    fn bring(&mut self, id: Id, reach: usize) -> bool {
        let distance = self.distance(id);
        if distance <= reach {
            return false;
        }
        let op = match self.ops[self.at[&id]] {
            Op::Return(answer) => Op::Return(answer),
            Op::Jump(further) => Op::Jump(distance as u32 + 1 + further),
            _ => Op::Jump(distance as u32),
        };
        self.push(id, op);
        true
    }

    fn push(&mut self, id: Id, op: Op) {
        self.at.insert(id, self.ops.len());
        self.ops.push(op);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Follows graph and program side by side, from the beginning to every end.
    fn assert_same(graph: &Graph, root: Id, program: &[Op]) {
        let (mut ahead, mut seen) = (vec![(root, 0)], HashSet::new());
        while let Some((id, mut at)) = ahead.pop() {
            if !seen.insert((id, at)) {
                continue;
            }
            while let Op::Jump(further) = program[at] {
                at += 1 + further as usize;
            }
            match (graph.nodes[id], program[at]) {
                (Node::Return(answer), Op::Return(written)) if answer == written => {}
                (Node::Load(offset, next), Op::Load(written)) if offset == written => ahead.push((next, at + 1)),
                (Node::And(bits, next), Op::And(written)) if bits == written => ahead.push((next, at + 1)),
                (Node::If(test, constant, yes, no), Op::If(t, c, y, n)) if (test, constant) == (t, c) => {
                    ahead.extend([(yes, at + 1 + usize::from(y)), (no, at + 1 + usize::from(n))]);
                }
                (node, op) => panic!("{node:?} became {op:?}"),
            }
        }
    }

    /// The two ends of a comparison are just within its reach or just beyond.
    #[test]
    fn what_brings_one_end_nearer_takes_the_other_no_further_than_a_byte() {
        for length in 200..300 {
            let mut graph = Graph::default();
            let (allow, deny) = (graph.add(Node::Return(0)), graph.add(Node::Return(1)));
            let far = graph.add(Node::If(Test::Equal, 1, allow, deny));
            let near = graph.add(Node::If(Test::Equal, 2, allow, far));
            let last = (0..length).fold(near, |next, bits| graph.add(Node::And(bits, next)));
            for (yes, no) in [(near, far), (far, near)] {
                let both = graph.add(Node::If(Test::Greater, 7, yes, no));
                let root = graph.add(Node::If(Test::Greater, 8, both, last));
                assert_same(&graph, root, &graph.instructions(root));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Nodes that lead to any node behind them, most of them one after the other.
        #[test]
        fn what_is_written_is_the_graph(nodes in vec((0..10u8, any::<u32>(), any::<proptest::sample::Index>()), 1..900)) {
            let mut graph = Graph::default();
            let mut last = graph.add(Node::Return(0));
            for (kind, value, any) in nodes {
                let other = any.index(graph.nodes.len());
                last = graph.add(match kind {
                    0 => Node::Return(value % 8),
                    1 => Node::Load(value % 64, other),
                    2 => Node::Load(value % 64, last),
                    3 => Node::And(value, other),
                    4..=6 => Node::If(Test::AtLeast, value, last, other),
                    _ => Node::If(Test::Equal, value, other, last),
                });
            }
            assert_same(&graph, last, &graph.instructions(last));
        }
    }
}
