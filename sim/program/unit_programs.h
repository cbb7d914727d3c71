// SPDX-License-Identifier: Apache-2.0
// The programs of the kinds of unit, in execution order: embedding, the two halves of a layer
// (attention and MLP, each with the norm before it and the residual after it), head with loss.
#pragma once

#include <vector>

#include "sim/program/program_writer.h"
#include "sim/program/unit_program.h"

namespace shardwright::sim {

using Program = std::vector<ProgramOp>;

Program embedding_forward(const ProgramWriter& w);
Program embedding_backward(ProgramWriter& w);

/// Append to the program of a layer.
void attention_forward(const ProgramWriter& w, Program& list);
void attention_backward(ProgramWriter& w, Program& list);
void mlp_forward(const ProgramWriter& w, Program& list);
void mlp_backward(ProgramWriter& w, Program& list);

struct HeadProgram {
  Program forward, backward;
  TensorSet kept;  // from forward to backward
  TensorSet held;  // of these, what stays until all of backward has ended
};
/// Final norm, projection and loss: of all tokens at once, or chunk by chunk with both products of
/// backward, where the stack says so.
HeadProgram head_program(ProgramWriter& w);

}  // namespace shardwright::sim
