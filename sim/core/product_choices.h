// SPDX-License-Identifier: Apache-2.0
// Which of a library's algorithms serves each GEMM on a kind of GPU, as it was timed.
//
// `measure` writes such choices into the profile of a cluster, a run keeps its own beside its
// checkpoints; both are this one form. A choice is a place in the library's list, so it means
// something only to the same release of the library on the same kind of GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

class JsonReader;

/// By which of the algorithms that the library offers a product is computed.
struct ProductChoice {
  std::string product;     // all that the library was asked for, in words
  std::int32_t place = 0;  // in the library's order
  double seconds = 0;      // of one, and of the first; 0: not timed
  double first_s = 0;
};

/// Algorithms of a product that are looked at, at most.
inline constexpr int kMostProductCandidates = 8;

struct ProductChoices {
  std::string release;  // of the library: "13.1.0"
  std::string gpu;
  std::vector<ProductChoice> choices;

  bool same_place(const ProductChoices& other) const {
    return release == other.release && gpu == other.gpu;
  }
  /// Adds what `other`, of the same library and GPU, names and this does not.
  void add(const ProductChoices& other);
};

/// An object with a schema of its own.
std::string to_json(const ProductChoices& choices);
/// Throws Error naming the reader's file.
ProductChoices read_product_choices(const JsonReader& root);
/// The same of a file's text.
ProductChoices product_choices_from(std::string_view text, const std::string& file);

}  // namespace shardwright
