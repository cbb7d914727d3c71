// SPDX-License-Identifier: Apache-2.0
// Steps of the table of families that say what each layer is (Model::kinds): which layers attend,
// with which heads and windows, and what the others have in place of attention or beside it.
//
// That some families have no RoPE is not counted: they are read as if they turned. A bias that
// balances experts without being trained is a buffer and no parameter.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/core/base/json_file.h"
#include "sim/core/hf/rows.h"
#include "sim/core/model.h"
#include "sim/core/recurrence.h"

namespace shardwright::hf {

// Layers whose attention differs in heads and windows.

PlainStep forms_of_afmoe, forms_of_laguna, forms_of_gemma4;

// Layers that do not all attend, with their recurrences.

/// Each n-th layer attends: `usual`, or what `key`, unless it is "", says.
Step attends_every(std::string_view key, std::int64_t usual);
PlainStep every_second_attends, listed_types_attend;
/// linear_num_key_heads and its like, with the defaults given.
Step gated_delta(const Recurrence& usual);
PlainStep gated_delta_of_olmo, kimi_delta, kimi_delta_of_ling;
PlainStep lightning_of_minimax, lightning_of_ling;
PlainStep short_convolutions, layers_of_lfm2, layers_of_lfm2_moe;
PlainStep mamba_layers, mamba2_layers, mamba2_beside_attention;
PlainStep layers_of_bamba, layers_of_jamba, layers_of_granite4, halves_of_nemotron;

// Before sizes are read: what else is needed for them.

using BeforeSizes = void(const JsonReader& config, Shape& shape);
BeforeSizes positions_of_tokenizer, taps_of_ling, number_of_blocks;

}  // namespace shardwright::hf
