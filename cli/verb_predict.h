// `shardwright predict`: memory, time and a timeline for one plan, or several side by side.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_predict_verb();

}  // namespace shardwright::cli
