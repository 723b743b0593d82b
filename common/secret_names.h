// What the name of a setting, an option or a header says about its value.
#ifndef STATCOLLECT_COMMON_SECRET_NAMES_H_
#define STATCOLLECT_COMMON_SECRET_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

namespace statcollect {

enum class Secrecy {
  kNone,
  kWeak,      // "key", "tokens": a secret only if the value looks like one
  kProbable,  // "api_key", "hub.token": a secret unless it is a number, a size or a special token
              // of a vocabulary
  kCertain,   // "password", "smtp_pass"
};

// The words of a name in lower case: "wandb.apiKey" -> wandb, api, key.
std::vector<std::string> WordsOf(std::string_view name);

// Names have dots between levels and may end in positions of a list: "db.password", "api_keys.0". A
// level above the last one makes its settings at most probable secrets; above an attribute of a
// module ("module.auth.eps") it is nothing but the module's name.
Secrecy SecrecyOf(std::string_view name);

// Whether a value under a name of this secrecy is hidden. Switches, null and references to a
// variable ("${TOKEN}") never are.
bool IsHidden(Secrecy secrecy, std::string_view value);

// Whether a part of the text consists of letters and digits that alternate as they hardly do in a
// word.
bool LooksSecret(std::string_view text);

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_SECRET_NAMES_H_
