// SPDX-License-Identifier: Apache-2.0
// Structure-aware mutation of JSON documents: what comes out is JSON again, so that an input gets
// past the parser to what its values mean.
//
// A value becomes another one of its kind or of another, a limit, or a copy of a value elsewhere,
// with a liking for members of the same key: an event takes the id, the time or the stream of
// another event, a knob of a plan that of another plan. Members and elements go, are doubled, many
// times over, or change places. Texts that are JSON themselves, as notes of traces are, are changed
// from within.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shardwright::fuzz {

/// `input` itself when it is no JSON or would become larger than `most_bytes`.
std::string mutate_json(const std::string& input, std::size_t most_bytes, std::uint32_t seed);

/// Changes the header of a safetensors file and makes its length right.
std::string mutate_safetensors(const std::string& input, std::size_t most_bytes,
                               std::uint32_t seed);

}  // namespace shardwright::fuzz
