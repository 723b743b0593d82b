// What a token allows, and which scope each method of the collector needs: the only such table.
#ifndef STATCOLLECT_SERVER_ACCESS_SCOPES_H_
#define STATCOLLECT_SERVER_ACCESS_SCOPES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::access {

enum class Scope : std::uint8_t { kIngest, kRead, kCapture, kControl, kDelete, kAdmin };
inline constexpr std::size_t kScopes = 6;

std::string_view ScopeName(Scope scope);  // "ingest"

class ScopeSet {
 public:
  ScopeSet() = default;
  void Add(Scope scope) { bits_ |= Bit(scope); }
  bool Has(Scope scope) const { return (bits_ & Bit(scope)) != 0; }
  bool empty() const { return bits_ == 0; }
  std::string ToString() const;  // "ingest,read"
  bool operator==(const ScopeSet&) const = default;

 private:
  static std::uint8_t Bit(Scope scope) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(scope));
  }
  std::uint8_t bits_ = 0;
};

// "ingest,read". kInvalidArgument: none, an unknown one, or one twice.
Result<ScopeSet> ParseScopes(std::string_view text);

// One row of the table. A null scope: open to everyone.
struct MethodRule {
  // "/statcollect.v1.Query/Diff"; "/metrics" of HTTP; "/assets/": all that is below it
  std::string_view method;
  std::optional<Scope> scope;
  bool audited = false;       // also when it succeeds
  bool all_projects = false;  // about the runs of all: refused to who is for one project
};

// All methods of gRPC, then all pages of HTTP that are not calls of gRPC. What is below /api/v1/ is
// a call of gRPC and has that method's rule.
std::span<const MethodRule> MethodRules();
// Null: not in the table, and therefore refused.
const MethodRule* FindRule(std::string_view method);

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_SCOPES_H_
