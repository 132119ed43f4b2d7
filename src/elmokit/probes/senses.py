"""Forty-one words of several senses, each in three everyday sentences: do vectors know the sense?

Output: `SENSE_TRIPLES`. `first` and `second` use the word in one sense, `other` in another; so
`similarity(first, second, word=word)` should exceed both `similarity(first, other, word=word)` and
`similarity(second, other, word=word)`.

The sentences were written before any model was tried, and must not be adapted to one. Only the sense should tell the
sentences of a triple from each other: the word has one form and one part of speech, is at nearly the same position
after similar function words, and the three sentences have no other content word in common.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SenseTriple:
    """A word in three sentences, once in each: twice in one sense, then in another."""

    word: str
    first: str
    second: str
    other: str


SENSE_TRIPLES = (
    # ---- nouns -------------------------------------------------------------------------------------------------------
    SenseTriple(
        "bank",
        "She walked to the bank before noon to deposit her wages.",
        "He complained that the bank had refused him a loan for his shop.",
        "They rowed toward the bank because the river had become too rough.",
    ),
    SenseTriple(
        "bat",
        "The boy swung the bat hard and sent the ball over the fence.",
        "My brother bought a bat and a leather glove for his first game.",
        "We watched as a bat flew out of the dark cave at dusk.",
    ),
    SenseTriple(
        "spring",
        "Farmers here wait for the spring before planting their first beans.",
        "Everyone was happy that the spring had finally brought some warmer days.",
        "The mattress creaked because the spring inside it was rusty and bent.",
    ),
    SenseTriple(
        "match",
        "Our team lost the match by two goals on Saturday night.",
        "Thousands of fans watched the match despite the heavy rain in London.",
        "She carefully lit the match and held it under the dry wood.",
    ),
    SenseTriple(
        "crane",
        "A huge yellow crane lifted the steel beams onto the roof.",
        "The workers needed a crane to raise the concrete blocks.",
        "A graceful white crane stood in the shallow marsh looking for frogs.",
    ),
    SenseTriple(
        "bark",
        "The beetles had damaged the bark of the old oak tree.",
        "Deer often chew on the bark of young pines during hard winters.",
        "The burglar was frightened by the bark of a large dog next door.",
    ),
    SenseTriple(
        "seal",
        "We spotted a young seal resting on the ice near the ship.",
        "Off the coast a seal dived under the waves to catch fish.",
        "The lawyer broke the seal on the envelope and read the letter.",
    ),
    SenseTriple(
        "palm",
        "He held the coin in his palm and showed it to me.",
        "The nurse wrote a number on her palm with a blue pen.",
        "We sat in the shade of a palm and drank cold coconut milk.",
    ),
    SenseTriple(
        "mouse",
        "The cat chased a mouse across the kitchen floor this morning.",
        "Last night we heard a mouse chewing on something behind the wall.",
        "My new laptop came with a mouse and a spare keyboard.",
    ),
    SenseTriple(
        "club",
        "He joined the club last year and made many friends there.",
        "Members of the club meet every Tuesday evening in the library.",
        "The golfer cleaned the club with a towel after each shot.",
    ),
    SenseTriple(
        "deck",
        "The sailors scrubbed the deck until it was perfectly clean.",
        "Passengers gathered on the deck to watch the whales swim past.",
        "The dealer shuffled the deck and gave each player five cards.",
    ),
    SenseTriple(
        "fan",
        "She switched on the fan because the room was hot and stuffy.",
        "A small electric fan kept the office cool through the summer.",
        "An excited young fan asked the singer for his autograph.",
    ),
    SenseTriple(
        "jam",
        "We always eat this jam with fresh bread and butter.",
        "My grandmother makes her jam from ripe plums and brown sugar.",
        "Dozens of drivers blamed the jam on an accident near the tunnel.",
    ),
    SenseTriple(
        "key",
        "She turned the key in the lock and went inside.",
        "He dropped the key to his car somewhere in the snow.",
        "The pianist changed the key of the song to suit her voice.",
    ),
    SenseTriple(
        "nail",
        "The picture hangs from a nail above the fireplace in our hall.",
        "The carpenter hammered a nail into the thick wooden board.",
        "The actress broke a nail and asked for some polish and a file.",
    ),
    SenseTriple(
        "note",
        "I left a note on the fridge so that nobody would forget the milk.",
        "The teacher sent a note to his parents about the trip.",
        "The soprano reached a note that almost cracked the glass.",
    ),
    SenseTriple(
        "organ",
        "The surgeon removed the organ during a four hour operation.",
        "Doctors hope that the organ will be healthy enough for the patient.",
        "Visitors admired how the organ filled the cathedral with music.",
    ),
    SenseTriple(
        "pipe",
        "The plumber replaced the pipe under the bathroom sink.",
        "Water leaked from the pipe and soaked the whole basement ceiling.",
        "Grandfather slowly filled the pipe with tobacco and looked for matches.",
    ),
    SenseTriple(
        "plant",
        "You should water this plant twice a week and keep it in sunlight.",
        "My sister gave me a plant with large green leaves for my desk.",
        "The company will close this plant and dismiss all two hundred workers.",
    ),
    SenseTriple(
        "plot",
        "Critics praised the novel but found the plot hard to follow.",
        "I enjoyed the film although the plot seemed a little silly.",
        "The farmer wanted to sell the plot beside the lake to a builder.",
    ),
    SenseTriple(
        "pool",
        "The children splashed around in the pool until their lips turned blue.",
        "Our hotel had a heated pool with a slide and a diving board.",
        "The manager chose her from the pool of applicants for the job.",
    ),
    SenseTriple(
        "port",
        "The ferry reached the port shortly after midnight.",
        "Most fishing boats left the port early to avoid the storm.",
        "After dinner our guests tasted the port with some cheese and walnuts.",
    ),
    SenseTriple(
        "pound",
        "Entry to the museum costs a pound for children under twelve.",
        "Yesterday my niece borrowed a pound to pay for her bus ticket.",
        "The recipe calls for a pound of minced beef and two onions.",
    ),
    SenseTriple(
        "pupil",
        "The teacher asked each pupil to read one page aloud.",
        "Last term a new pupil joined our class from Spain.",
        "The doctor noticed that each pupil reacted slowly to bright light.",
    ),
    SenseTriple(
        "ring",
        "A jeweller made the ring out of gold and a small diamond.",
        "She never takes off the ring that her mother wore.",
        "The boxer climbed into the ring to loud cheers from the crowd.",
    ),
    SenseTriple(
        "rock",
        "The miners drilled through rock for weeks before they reached gold.",
        "The island is mostly rock with very little soil or grass.",
        "My uncle listens to rock but seldom to jazz or opera.",
    ),
    SenseTriple(
        "scale",
        "The baker used a scale to measure flour for the loaves.",
        "I stepped on the scale and found that I was getting heavier.",
        "The young violinist practised a scale before she began the sonata.",
    ),
    SenseTriple(
        "star",
        "We could see a star through a gap in the clouds.",
        "Astronomers discovered a star far larger than our own sun.",
        "The film made her a star before she turned twenty.",
    ),
    SenseTriple(
        "suit",
        "He wore a suit and a silk tie to the wedding.",
        "My father ordered a suit from the best tailor in town.",
        "The tenants filed a suit against their landlord over the broken heating.",
    ),
    SenseTriple(
        "table",
        "Please put the plates on the table before the soup gets cold.",
        "The family sat around the table and talked about the holidays.",
        "The results appear in the table at the end of the report.",
    ),
    SenseTriple(
        "trunk",
        "We loaded our bags into the trunk and drove to the beach.",
        "A spare tyre lay in the trunk under a grey mat.",
        "The child fed peanuts into the trunk of the friendly elephant.",
    ),
    SenseTriple(
        "court",
        "The judge told the court that the witness had lied.",
        "A lawyer must address the court politely and stand while speaking.",
        "The tennis players left the court when it started raining.",
    ),
    # ---- verbs -------------------------------------------------------------------------------------------------------
    SenseTriple(
        "fired",
        "The manager fired two salesmen for stealing from the shop.",
        "Her boss fired the lazy clerk after many complaints.",
        "The soldiers fired several bullets through the open window.",
    ),
    SenseTriple(
        "drew",
        "The little boy drew a red house with a blue roof.",
        "My daughter drew funny pictures of our neighbours on Sunday.",
        "The old horse drew a heavy cart along the village street.",
    ),
    SenseTriple(
        "charged",
        "The hotel charged us fifty dollars for a broken lamp.",
        "The mechanic charged very little for repairing my bicycle.",
        "The bull charged a man in a red jacket near the gate.",
    ),
    SenseTriple(
        "served",
        "The waiter served the soup in small white bowls.",
        "Our hosts served grilled fish with rice and salad.",
        "My grandfather served two years in the navy as a young man.",
    ),
    SenseTriple(
        "raised",
        "The student raised her hand to ask another question.",
        "The weightlifter raised the bar above his head without help.",
        "Her aunt raised three children on a very small farm.",
    ),
    # ---- adjectives --------------------------------------------------------------------------------------------------
    SenseTriple(
        "light",
        "The suitcase was light enough for a child to carry upstairs.",
        "This tent is light and easily fits inside my backpack.",
        "The kitchen was light because it had large windows facing south.",
    ),
    SenseTriple(
        "hard",
        "The bread was so hard that nobody could bite into it.",
        "The frozen ground is very hard beneath all that snow.",
        "The exam was very hard and few students passed it.",
    ),
    SenseTriple(
        "bright",
        "The lamp was too bright for such a tiny bedroom.",
        "Outside the sun was bright and nobody was wearing a coat.",
        "Her youngest son is bright and quickly learns foreign languages.",
    ),
    SenseTriple(
        "sharp",
        "The knife in that drawer is sharp so please be careful.",
        "The edge of the broken glass was sharp enough to cut leather.",
        "Her reply to the reporter was sharp and rather rude.",
    ),
)
