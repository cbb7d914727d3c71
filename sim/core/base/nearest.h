// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...": the known word nearest to one that is not known.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

/// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours) to
/// `word`; when even that one differs in more than a third of its letters, the shortest that has
/// `word` among its parts ("batch" is a part of "--micro-batch"), or nothing. Case does not count;
/// ties go to the first.
std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates);

/// ", did you mean 'x'?" or "", to append to a sentence that names an unknown word.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// The `count` candidates most like `word`, best first: those that contain it or are contained in
/// it before the others, then by how well its parts ("a100" and "80gb" of "A100-80GB") are found
/// in them, then by edit distance. Case does not count. Unlike nearest it always answers, for
/// "unknown name; the nearest are ...".
std::vector<std::string> nearest_few(std::string_view word, std::vector<std::string> candidates,
                                     std::size_t count);

}  // namespace shardwright
