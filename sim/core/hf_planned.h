// SPDX-License-Identifier: Apache-2.0
// Configs of families that planners may use and the executor does not run: their arithmetic is that
// of the others, down to the parameter, but for details that cost nothing (multipliers of scores
// and residuals, layers without RoPE, squared ReLU). Model::planning_only names the detail.
#pragma once

#include "sim/core/json_file.h"
#include "sim/core/model.h"

namespace shardwright::hf {

Model read_cohere(const JsonReader& config);
Model read_falcon(const JsonReader& config);
Model read_gemma3(const JsonReader& config);
Model read_glm(const JsonReader& config);
Model read_glm4(const JsonReader& config);
Model read_granite(const JsonReader& config);
Model read_nemotron(const JsonReader& config);
Model read_olmo2(const JsonReader& config);
Model read_smollm3(const JsonReader& config);
Model read_stablelm(const JsonReader& config);
Model read_starcoder2(const JsonReader& config);

}  // namespace shardwright::hf
