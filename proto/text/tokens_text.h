// The answer of a comparison by tokens in words.
#ifndef STATCOLLECT_PROTO_TEXT_TOKENS_TEXT_H_
#define STATCOLLECT_PROTO_TEXT_TOKENS_TEXT_H_

#include <string>

#include "statcollect/v1/query.pb.h"

namespace statcollect {

// The verdict and its sentence.
v1::DiffText TokensText(const v1::GetTokensResponse& found);

// "0.012", or that only one run's row has components that are not finite.
std::string ApartText(double distance);

}  // namespace statcollect

#endif  // STATCOLLECT_PROTO_TEXT_TOKENS_TEXT_H_
