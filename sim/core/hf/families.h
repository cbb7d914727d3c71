// SPDX-License-Identifier: Apache-2.0
// What the keys of a Hugging Face config.json mean: a table of families, each a row of keys, their
// defaults and what is computed from them (rows.h, layer_kinds.h).
//
// Families that are planned and run are those of exec/layout.h. Planned only are the others.
// Keys that are absent have the defaults of the Transformers configuration classes. RoPE is read in
// both forms: rope_theta with rope_scaling, and the rope_parameters of Transformers 5.
//
// A key that changes the arithmetic and is not modelled is an error that names it: experts of a
// dense family, unknown RoPE types and activations, query/key norms where the family has none and
// the like. Keys that do not matter for the cost of training are ignored;
// dropout is one of them: steps are modelled without it, as large models are trained.
#pragma once

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// The model of a config, without its name. Throws Error naming file, key and value. Sizes are
/// within model_limits and divide; check_model has still to bound their product.
Model model_from_config(const JsonReader& config);

}  // namespace shardwright::hf
