// SPDX-License-Identifier: Apache-2.0
// The file that `export` writes: settings of a trainer under a head that says where they come from
// and what they cannot say.
#pragma once

#include <string>
#include <vector>

#include "cli/export/settings.h"

namespace shardwright::cli {

/// `origin` are the sentences of the head. Comments where the format has them; in JSON a member
/// "_comment", which DeepSpeed skips like every key it does not know.
AnySource trainer_file(const Trainer& trainer, const TrainerSettings& settings,
                       const std::vector<std::string>& origin);

/// "ckpt_layers: 20 of 80 layers are ...".
std::string remark_text(const Remark& remark);

}  // namespace shardwright::cli
