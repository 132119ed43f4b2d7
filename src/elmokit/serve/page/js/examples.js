// Words of several senses, with the sense that a reader sees in each sentence. The page compares what the model finds with
// it. The last two are not told apart by the model that comes with elmokit.

const example = (word, senses) => {
  const entries = Object.entries(senses);
  return {
    word,
    names: entries.map(([name]) => name),
    text: entries.flatMap(([, sentences]) => sentences).join("\n"),
    labels: entries.flatMap(([, sentences], sense) => sentences.map(() => sense)), // one occurrence per sentence
  };
};

export const EXAMPLES = [
  example("cell", {
    "of a body": ["Every cell contains a nucleus.", "The virus enters the cell and copies itself.", "The cell wall is made of proteins."],
    "of a prison": ["The guard locked him in his cell.", "The prisoner slept on the floor of his cell.", "She spent the night in a prison cell."],
  }),
  example("bank", {
    "for money": ["The bank raised its interest rates.", "He borrowed the money from a bank in London.", "She works for a large investment bank."],
    "of a river": ["We sat on the bank of the river.", "They fished from the muddy bank of the stream.", "Trees grew along the far bank of the lake."],
  }),
  example("play", {
    "a drama": ["The play was performed at the theatre in 1923.", "She wrote her first play for the London stage.", "Critics praised the play and its actors."],
    "have fun": ["The children play in the garden after school.", "They play football in the street.", "The boys were allowed to play outside."],
  }),
  example("spring", {
    "a season": ["The birds return every spring.", "The snow melts in early spring.", "We plant the garden in spring."],
    "a source of water": ["They drank water from a spring in the rock.", "A spring of clear water rises in the hills.", "The stream begins at a spring in the forest."],
  }),
  example("right", {
    "not left": ["He broke his right arm in the fall.", "She writes with her right hand.", "He was wounded in the right leg."],
    "a freedom": ["Women won the right to vote in 1920.", "Everyone has the right to a fair trial.", "The law gives workers the right to strike."],
  }),
];

export const HARD_EXAMPLES = [
  example("crane", {
    "a machine": ["The crane lifted the steel beams.", "A crane stood over the building site.", "The workers moved the load with a crane."],
    "a bird": ["The crane built its nest in the marsh.", "A crane flew over the lake.", "The crane is a bird with long legs."],
  }),
  example("match", {
    "for fire": ["He lit a match and looked around.", "She struck a match to light the candle.", "The match burned his fingers."],
    "a game": ["They won the match by two goals.", "The match was played in the rain.", "He scored in the last match of the season."],
  }),
];
