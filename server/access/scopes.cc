#include "server/access/scopes.h"

#include <algorithm>
#include <array>

#include "common/names.h"

namespace statcollect::access {
namespace {

constexpr std::array<std::string_view, kScopes> kScopeNames = {"ingest",  "read",   "capture",
                                                               "control", "delete", "admin"};
constexpr bool kAudited = true, kAllProjects = true;

// docs/reference-security.md is written from it (access_test).
constexpr MethodRule kRules[] = {
    {"/statcollect.v1.Ingest/Stream", Scope::kIngest},
    {"/statcollect.v1.Ingest/Copy", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Query/ListRuns", Scope::kRead},
    {"/statcollect.v1.Query/GetRun", Scope::kRead},
    {"/statcollect.v1.Query/Diff", Scope::kRead},
    {"/statcollect.v1.Query/GetSeries", Scope::kRead},
    {"/statcollect.v1.Query/GetCurves", Scope::kRead},
    {"/statcollect.v1.Query/ListScalars", Scope::kRead},
    {"/statcollect.v1.Query/ListLosses", Scope::kRead},
    {"/statcollect.v1.Query/ListEvents", Scope::kRead},
    {"/statcollect.v1.Query/ListMemory", Scope::kRead},
    {"/statcollect.v1.Query/ListDensity", Scope::kRead},
    {"/statcollect.v1.Query/FollowEvents", Scope::kRead},
    {"/statcollect.v1.Query/FollowRuns", Scope::kRead},
    {"/statcollect.v1.Query/GetHeatMap", Scope::kRead},
    {"/statcollect.v1.Query/ReadRecords", Scope::kRead},
    {"/statcollect.v1.Query/GetTop", Scope::kRead},
    {"/statcollect.v1.Query/GetStatMap", Scope::kRead},
    {"/statcollect.v1.Query/ProposeMap", Scope::kRead},
    {"/statcollect.v1.Query/CompareConfig", Scope::kRead},
    {"/statcollect.v1.Query/CheckRanks", Scope::kRead},
    {"/statcollect.v1.Query/GetNoise", Scope::kRead},
    {"/statcollect.v1.Query/ListCaptures", Scope::kRead},
    {"/statcollect.v1.Query/ListExponents", Scope::kRead},
    {"/statcollect.v1.Query/GetZoom", Scope::kRead},
    {"/statcollect.v1.Query/GetWeights", Scope::kRead},
    {"/statcollect.v1.Query/GetTokens", Scope::kRead},
    {"/statcollect.v1.Query/ReadCapture", Scope::kCapture, kAudited},
    {"/statcollect.v1.Query/SaveNoise", Scope::kControl, kAudited},
    {"/statcollect.v1.Query/DeleteNoise", Scope::kControl, kAudited},
    {"/statcollect.v1.Admin/GetStatus", Scope::kRead},
    {"/statcollect.v1.Admin/RequestCapture", Scope::kCapture, kAudited},
    {"/statcollect.v1.Admin/KeepRun", Scope::kControl, kAudited},
    {"/statcollect.v1.Admin/RecordSteps", Scope::kControl, kAudited},
    {"/statcollect.v1.Admin/DeleteRun", Scope::kDelete, kAudited},
    {"/statcollect.v1.Admin/Checkpoint", Scope::kAdmin, kAudited, kAllProjects},
    {"/statcollect.v1.Admin/ListAudit", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Login/CreateLink", Scope::kRead},
    {"/statcollect.v1.Transfer/DescribeStore", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Transfer/DescribeRun", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Transfer/ReadRank", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Transfer/DigestRank", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Transfer/BeginCopy", Scope::kAdmin, kAudited},
    {"/statcollect.v1.Transfer/WritePart", Scope::kAdmin, kAudited},
    {"/healthz", std::nullopt},
    {"/readyz", std::nullopt},
    {"/", std::nullopt},  // the page and its files are the same for everybody; what they show is
                          // asked for
    {"/assets/", std::nullopt},   // with a token
    {"/session/", std::nullopt},  // to log in and out
    {"/metrics", Scope::kRead},
    {"/api/v1/openapi.json", std::nullopt},
};

}  // namespace

std::string_view ScopeName(Scope scope) { return kScopeNames[static_cast<std::size_t>(scope)]; }

std::string ScopeSet::ToString() const {
  std::string text;
  for (std::size_t i = 0; i < kScopes; ++i) {
    if (Has(static_cast<Scope>(i))) text.append(text.empty() ? "" : ",").append(kScopeNames[i]);
  }
  return text;
}

Result<ScopeSet> ParseScopes(std::string_view text) {
  ScopeSet scopes;
  const auto bad = [](const std::string& found) {
    std::string known;
    for (const std::string_view name : kScopeNames)
      known.append(known.empty() ? "" : ", ").append(name);
    return Status(Code::kInvalidArgument,
                  "scopes: " + found + "; expected some of " + known + ", separated by commas");
  };
  if (text.empty()) return bad("found none");
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const auto found = std::find(kScopeNames.begin(), kScopeNames.end(), name);
    if (found == kScopeNames.end()) return bad("'" + Printable(name) + "' is not a scope");
    const auto scope = static_cast<Scope>(found - kScopeNames.begin());
    if (scopes.Has(scope)) return bad("found '" + std::string(name) + "' twice");
    scopes.Add(scope);
    begin = end + 1;
  }
  return scopes;
}

std::span<const MethodRule> MethodRules() { return kRules; }

const MethodRule* FindRule(std::string_view method) {
  const auto is_for = [&](const MethodRule& rule) {
    const bool folder = rule.method.size() > 1 && rule.method.ends_with('/');
    return folder ? method.starts_with(rule.method) : rule.method == method;
  };
  const auto found = std::find_if(std::begin(kRules), std::end(kRules), is_for);
  return found == std::end(kRules) ? nullptr : found;
}

}  // namespace statcollect::access
