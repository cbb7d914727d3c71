// SPDX-License-Identifier: Apache-2.0
// Families of language models that are known by name and have something that Model has not.
#pragma once

#include <string_view>

namespace shardwright::hf {

/// What models of this model_type (or class, of files that lack one) have that is not modelled, as
/// in "Mamba-2 layers"; "" of a type that is modelled or that nobody here has met.
std::string_view unmodelled_part(std::string_view type);

}  // namespace shardwright::hf
