// `shardwright profile diff A B`, `shardwright profile validate FILE...`: profiles as a library.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_profile_verb();

}  // namespace shardwright::cli
