// SPDX-License-Identifier: Apache-2.0
// The halves of a layer and what they are made of, in execution order; each appends to a list.
#pragma once

#include "sim/program/program_writer.h"

namespace shardwright::sim {

/// The first half of a layer: norm, what mixes tokens, residual; nothing for Mixer::kNone.
void mixer_forward(const ProgramWriter& w, Ops& list, Mixer mixer);
void mixer_backward(const ProgramWriter& w, Ops& list, Mixer mixer);

/// From the norm's output to the first half's: queries, keys and values, attention, product out.
void attention_forward(const ProgramWriter& w, Ops& list);
void attention_backward(const ProgramWriter& w, Ops& list);

/// The second half: norm, gate and up, activation, down projection, residual.
void mlp_forward(const ProgramWriter& w, Ops& list);
void mlp_backward(const ProgramWriter& w, Ops& list);

/// Queries, keys and values by way of two latent vectors (DeepSeek-V2, multi-head latent
/// attention).
void latent_forward(const ProgramWriter& w, Ops& list);
void latent_backward(const ProgramWriter& w, Ops& list);

/// A recurrence in place of attention; beside it, its output is left apart.
void recurrence_forward(const ProgramWriter& w, Ops& list, bool beside_attention);
void recurrence_backward(const ProgramWriter& w, Ops& list);

/// The end of the first half: `product` and the residual, and what backward begins with.
void first_half_ends(const ProgramWriter& w, Ops& list, const Product& product);
void first_half_begins_backward(const ProgramWriter& w, Ops& list, const Product& product);
/// Of a product in the first half: the gradient of its output.
Operand first_half_gradient(const ProgramWriter& w);

/// Attention itself, over the sequence that context parallel ranks share.
void attention_core(const ProgramWriter& w, Ops& list, bool backward);

}  // namespace shardwright::sim
