// The list of verbs, in the order in which --help shows them.
#pragma once

#include <memory>
#include <vector>

#include "cli/verb.h"

namespace shardwright::cli {

std::vector<std::unique_ptr<Verb>> make_verbs();

}  // namespace shardwright::cli
