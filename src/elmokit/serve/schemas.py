"""Fields of the request and response bodies.

Input: JSON values.  Output: checked requests, and the schemas that OpenAPI shows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Inputs = str | list[str | list[str]]
Layer = Literal["average", "top", "slot", "sense"] | Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]


# ---- requests --------------------------------------------------------------------------------------------------------


def with_example(body: dict[str, Any]) -> ConfigDict:
    """The configuration of a request with an example, which OpenAPI and the page at /docs show."""
    return ConfigDict(json_schema_extra={"examples": [body]})


class RequestBody(BaseModel):
    """A request. Types are not converted, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ModelChoice(RequestBody):
    """The model of a server with several models, by its name; by default the first one."""

    model: str | None = None


class Truncation(RequestBody):
    """Whether a sentence with too many tokens is cut, and from which side."""

    truncate: bool | None = False
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    prompt_name: None = None
    """Accepted for clients of text-embeddings-inference. Prompts are not supported."""


class EmbedRequest(Truncation, ModelChoice):
    """One text, a list of texts, or a list of token lists.

    With `late_chunking` the inputs are the chunks of one document, in order, and the model reads all of them in one
    pass. `dimensions` makes vectors shorter: it divides the full width, and the sums of width / dimensions consecutive
    numbers are the numbers of the short vector.
    """

    model_config = with_example({"inputs": ["The bank lent money.", "He sat by the river bank."]})

    inputs: Inputs
    normalize: bool | None = True
    layers: Layer = "average"
    late_chunking: bool = False
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float"] | None = None
    """Accepted for clients of Hugging Face."""


class EmbedAllRequest(Truncation, ModelChoice):
    """One text, a list of texts, or a list of token lists."""

    model_config = with_example({"inputs": "The bank lent money.", "layers": "sense"})

    inputs: Inputs
    layers: Layer = "average"


class SimilarityInput(RequestBody):
    """A sentence, and the sentences to compare it with. With `word`, that word or phrase in them, which all have."""

    source_sentence: str
    sentences: list[str]
    word: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class SimilarityParameters(Truncation):
    """Which vectors are compared. `layers` is by default "average" for sentences, "sense" for a word."""

    layers: Layer | None = None


class SimilarityRequest(ModelChoice):
    """Cosines of sentence vectors, or of a word in the sentences."""

    model_config = with_example(
        {
            "inputs": {
                "source_sentence": "The bank lent money.",
                "sentences": ["He sat by the river bank.", "The bank paid."],
                "word": "bank",
            }
        }
    )

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None


def _kind_of_inputs(body: Any) -> str:
    """Which endpoint of Hugging Face a request at / is for."""
    inputs = body.get("inputs") if isinstance(body, dict) else getattr(body, "inputs", None)
    return "similarity" if isinstance(inputs, dict | SimilarityInput) else "embed"


HuggingFaceRequest = Annotated[
    Annotated[EmbedRequest, Tag("embed")] | Annotated[SimilarityRequest, Tag("similarity")],
    Discriminator(_kind_of_inputs),
]


class TokenizeRequest(ModelChoice):
    """One text or a list of texts."""

    model_config = with_example({"inputs": "The bank lent money."})

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: None = None


class OpenAIRequest(ModelChoice):
    """The request of OpenAI's embeddings endpoint; `late_chunking` as in `/embed`."""

    model_config = with_example({"input": ["The bank lent money.", "He sat by the river bank."]})

    input: str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    late_chunking: bool = False


class LayersRequest(Truncation, ModelChoice):
    """Layers of every token. With `weights`, one per layer, the weighted sum of these layers."""

    model_config = with_example({"inputs": "The bank lent money.", "layers": [1, 2]})

    inputs: Inputs
    layers: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=64)] = "all"
    weights: Annotated[list[Finite], Field(max_length=64)] | None = None
    gamma: Finite = 1.0


class LogProbsRequest(Truncation, ModelChoice):
    """One text, a list of texts, or a list of token lists."""

    model_config = with_example({"inputs": "The bank lent money."})

    inputs: Inputs


class SubstitutesRequest(ModelChoice):
    """A text with one word in brackets, `He sat on the [bank] .`; or a token list and a position in it."""

    model_config = with_example({"inputs": "He sat on the [bank] .", "k": 5})

    inputs: str | list[str]
    position: Annotated[int, Field(ge=0)] | None = None
    k: Annotated[int, Field(ge=1, le=1000)] = 10
    keep_word: bool = False
    """Also return the word that is there, after the k words if it is not among them."""


class NeighboursRequest(RequestBody):
    """A text with one word or phrase in brackets, `He sat by the [bank] .`"""

    model_config = with_example({"inputs": "He sat by the [bank] .", "k": 5})

    inputs: str
    k: Annotated[int, Field(ge=1, le=100)] = 10


class TaskRequest(RequestBody):
    """One input of a task or a list of them: texts, token lists, or objects, `{"premise": …, "hypothesis": …}`."""

    model_config = with_example({"inputs": "Maria flew to Rome."})

    inputs: str | dict[str, Any] | list[str | list[str] | dict[str, Any]]


# ---- responses -------------------------------------------------------------------------------------------------------


class ErrorBody(BaseModel):
    """The body of every response with a status of 400 or more."""

    error: str
    error_type: str


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    message: str
    type: str
    param: None
    code: None


class OpenAIErrorBody(BaseModel):
    """The body of every response of /v1 with a status of 400 or more."""

    error: OpenAIError
    error_type: str


class SimpleToken(BaseModel):
    """A token and its offsets in characters. `id` is its place in the vocabulary, null without a vocabulary."""

    id: int | None
    text: str
    special: bool
    start: int | None
    stop: int | None


class OpenAIEmbedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class OpenAIUsage(BaseModel):
    """Number of tokens, by the model's tokenizer."""

    prompt_tokens: int
    total_tokens: int


class OpenAIResponse(BaseModel):
    """The response of OpenAI's embeddings endpoint."""

    object: Literal["list"]
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class OpenAIModel(BaseModel):
    """A model of this server."""

    id: str
    object: Literal["model"]
    created: int
    """When the server was started, in seconds since 1970."""
    owned_by: str


class OpenAIModels(BaseModel):
    """The models of this server. The first one is the default."""

    object: Literal["list"]
    data: list[OpenAIModel]


class LayersResponse(BaseModel):
    """`vectors[i]` has the shape (layers, tokens, width), or with weights (tokens, width)."""

    tokens: list[list[str]]
    layers: list[int]
    vectors: list[Any]


class SentencePerplexity(BaseModel):
    """exp of the mean negative log-probability, boundaries included; null if it is too large for a float.

    `both` is the geometric mean of the two directions; `known` is the same without the `num_unknown` unknown tokens.
    """

    forward: float | None
    backward: float | None
    both: float | None
    num_tokens: int
    """Number of predictions in each direction: tokens, and one boundary."""
    num_unknown: int
    known: float | None


class SentenceLogProbs(BaseModel):
    """Natural logarithms of the probability of each token, from the tokens before it and from those after it.

    A token that is not in the vocabulary is scored as <UNK>; `unknown` is true for it.
    """

    tokens: list[str]
    forward: list[float]
    backward: list[float]
    forward_end: float
    backward_end: float
    unknown: list[bool]
    perplexity: SentencePerplexity


class SubstituteWord(BaseModel):
    """A word for the marked place, and its log-probability."""

    word: str
    log_prob: float


class NeighbourWord(BaseModel):
    """A word of the indexed corpus: `tokens[index]` of its sentence, and its cosine with the marked word."""

    tokens: list[str]
    index: int
    word: str
    cosine: float
    sentence_number: int


class Embedding(BaseModel):
    """How a sentence vector is made from token vectors."""

    pooling: Literal["mean"]


class ModelType(BaseModel):
    """The field `model_type` of text-embeddings-inference."""

    embedding: Embedding


class Info(BaseModel):
    """The model and the limits: first the fields of text-embeddings-inference, then those of elmokit."""

    model_id: str
    model_sha: str | None
    """SHA-256 of all that makes the vectors, as from `ELMo.digest`."""
    model_dtype: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    max_request_tokens: int
    max_body_bytes: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    num_layers: int
    vector_dim: int
    language_model: bool
    vocabulary_size: int | None
    tokenizer: str
    """How the model splits strings into tokens: treebank, spaces, characters or han."""
    tasks: list[str]
    task_kinds: dict[str, str | None]
    """The kind of each task by its name on this server: ner, sentiment, …"""
    index_words: int | None
    """Number of words in the index, null without an index."""
    models: list[str]
    """The names of all models. The first one is the default."""


class Status(BaseModel):
    """The status of the server."""

    status: str
